"""Images for models: decoding, processing as each family was trained, positions, pruning of visual tokens."""
