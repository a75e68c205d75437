"""Speed, memory and start-up figures of this package and of its peers, measured side by side."""
