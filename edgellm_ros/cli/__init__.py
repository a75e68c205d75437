"""The command edgellm."""
