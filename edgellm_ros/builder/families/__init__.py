"""One file a model family: names of its tensors and the graph they make."""
