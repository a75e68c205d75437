"""What parameters must be together, where each alone would be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import EdgeLLMError
from ..runtime.guide_grammar import check_guide
from .parameters import GuideSettings

_GUIDE = ("guide.kind", "guide.text")
_PIVOTS = ("visual_pruner.pivot_image_tokens", "visual_pruner.pivot_text_tokens")


def _bad_pivots(values: Mapping[str, Any]) -> str | None:
    if any(values[name] for name in _PIVOTS):
        return None
    return f"{' and '.join(_PIVOTS)} would both be 0; want at least one pivot."


def _bad_guide(values: Mapping[str, Any]) -> str | None:
    kind, text = (values[name] for name in _GUIDE)
    try:
        guide = GuideSettings(kind, text).guide
        if guide is not None:
            check_guide(guide)
    except EdgeLLMError as error:
        return f"guide.kind {kind}: {error}"
    return None


# names that are checked together, and why their values cannot be so (None: they can)
RULES: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], str | None]], ...] = (
    (_GUIDE, _bad_guide),
    (_PIVOTS, _bad_pivots),
)
