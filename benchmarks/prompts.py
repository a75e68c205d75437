"""Token ids that every engine of a case is given."""

from __future__ import annotations


def prompt_ids(count: int, variant: int) -> list[int]:
    """``count`` ordinary ids; another ``variant`` shares no prefix, so that no engine can reuse an earlier prompt."""
    return [100 + ((index + 1) * 7919 + variant * 104729) % 40000 for index in range(count)]
