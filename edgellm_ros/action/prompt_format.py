"""The form of a policy's prompt: text with places for what it is about, each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter


def check_prompt_format(text: str, places: Sequence[str]) -> None:
    """:raises ValueError: it has other places than ``places``, in that order, or one that is more than a name."""
    try:
        found = [part[1:] for part in Formatter().parse(text) if part[1] is not None]
    except ValueError:
        found = []
    if found != [(place, "", None) for place in places]:
        wanted = ", ".join(f"{{{place}}}" for place in places)
        raise ValueError(f"prompt_format is {text!r}; want text with {wanted}, in this order and once each")
