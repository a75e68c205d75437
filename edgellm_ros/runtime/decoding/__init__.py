"""Strategies that turn one engine step into tokens."""
