"""One model, many requests: what a rank does from prompt to tokens."""
