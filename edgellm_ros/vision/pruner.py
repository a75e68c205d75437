"""Visual-token pruning: what is asked, how many tokens of each image stay, and what came of it.

The choice itself is a backend's kernel (``Backend.select_tokens``, DART on input embeddings). Kept tokens keep their
positions and decoding continues behind the unpruned prompt, so a pruned run equals a full-length run in which nobody
attends to the dropped tokens, for three-axis and for plain positions alike. (The official runtime prunes models with
three-axis positions only.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from ..backends.base import Backend, Tensor, TokenSpan
from ..backends.token_selection import MOST_PIVOTS
from ..errors import RefusalCode, RequestError
from ..json_values import shown

ALGORITHMS = ("dart",)
MOST_MIN_TOKENS = 4096


class PruningOutcome(str, Enum):
    """Applied, or why not."""

    APPLIED = "applied"
    OFF = "off"
    NO_IMAGES = "no_images"
    FEW_TOKENS = "few_tokens"  # fewer visual tokens than ``min_visual_tokens``
    NOTHING_TO_DROP = "nothing_to_drop"  # the share removed rounds to no token of any image
    NO_PIVOTS = "no_pivots"  # no text in the prompt, and no image pivots asked for
    SLIDING_WINDOW = "sliding_window"  # the engine's window counts cache slots, not positions
    HIDDEN_STATES = "hidden_states"  # the states of every position were asked for
    ACTIONS = "actions"  # a policy acts by what it sees: not asked for there, or it sees by other means than a prefix


@dataclass(frozen=True)
class VisualPrunerConfig:
    """Checked at birth.

    ``reduction_ratio``: share of each image's tokens that is removed, above 0 and below 1. Prompts with fewer than
    ``min_visual_tokens`` are left alone. ``pivot_image_tokens`` per image, ``pivot_text_tokens`` per prompt.

    :raises RequestError: a value is out of range; the sentence names it.
    """

    enabled: bool = False
    algorithm: str = "dart"
    reduction_ratio: float = 0.25
    min_visual_tokens: int = 16
    pivot_image_tokens: int = 4
    pivot_text_tokens: int = 4

    @classmethod
    def of(cls, value: VisualPrunerConfig | Mapping[str, Any]) -> VisualPrunerConfig:
        """The configuration itself, or one made of named values.

        :raises RequestError: an unknown name or a bad value.
        """
        if isinstance(value, VisualPrunerConfig):
            return value
        known = {entry.name for entry in fields(cls)}
        if not isinstance(value, Mapping):
            raise RequestError(f"the visual pruner is {shown(value)}; want a VisualPrunerConfig, or values by name.")
        unknown = [name for name in value if name not in known]
        if unknown:
            raise RequestError(
                f"the visual pruner has {shown(unknown[0])}; want some of {', '.join(sorted(known))}.",
                RefusalCode.BAD_PARAMETER,
            )
        return cls(**value)

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise _bad(f"enabled is {shown(self.enabled)}; want true or false")
        if not isinstance(self.algorithm, str) or self.algorithm not in ALGORITHMS:
            raise _bad(f"algorithm is {shown(self.algorithm)}; want one of {', '.join(ALGORITHMS)}")
        ratio = self.reduction_ratio
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1:
            raise _bad(f"reduction_ratio is {shown(ratio)}; want a number above 0 and below 1")
        for name, low, high in (
            ("min_visual_tokens", 1, MOST_MIN_TOKENS),
            ("pivot_image_tokens", 0, MOST_PIVOTS),
            ("pivot_text_tokens", 0, MOST_PIVOTS),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise _bad(f"{name} is {shown(value)}; want a whole number from {low} to {high}")
        if not self.pivot_image_tokens and not self.pivot_text_tokens:
            raise _bad("pivot_image_tokens and pivot_text_tokens are both 0; want at least one pivot")


@dataclass(frozen=True)
class PruningReport:
    """What pruning did to one prompt; ``before`` and ``after`` count visual tokens.

    ``kept``: of each image in order, which of its tokens are left; empty where all are.
    """

    outcome: PruningOutcome
    before: int = 0
    after: int = 0
    kept: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    @property
    def applied(self) -> bool:
        """True where tokens were dropped."""
        return self.outcome is PruningOutcome.APPLIED


@dataclass(frozen=True)
class PrunedPrompt:
    """``keep``: places of the prompt to compute, ascending, or None where it is left as it is."""

    report: PruningReport
    keep: tuple[int, ...] | None = None


def quota(count: int, ratio: float) -> int:
    """Tokens of an image of ``count`` tokens that stay: at least one."""
    # a ratio such as 0.7 is no binary fraction: 10 * (1 - 0.7) is a hair above 3, and 3 is what was asked for
    return max(1, min(count, math.ceil(count * (1 - ratio) - 1e-9)))


def plan_spans(
    image_spans: Sequence[tuple[int, int]], length: int, config: VisualPrunerConfig
) -> tuple[PruningOutcome, tuple[TokenSpan, ...]]:
    """How many tokens of each image stay, or why all do.

    ``image_spans``: (start, stop) of every image in a prompt of ``length`` tokens, ascending. Images that touch are
    separate spans, so none can be pruned away for its neighbour.
    """
    spans = tuple(TokenSpan(start, stop, quota(stop - start, config.reduction_ratio)) for start, stop in image_spans)
    visual = sum(span.stop - span.start for span in spans)
    if not config.enabled:
        return PruningOutcome.OFF, spans
    if not visual:
        return PruningOutcome.NO_IMAGES, spans
    if visual < config.min_visual_tokens:
        return PruningOutcome.FEW_TOKENS, spans
    if all(span.quota == span.stop - span.start for span in spans):
        return PruningOutcome.NOTHING_TO_DROP, spans
    if not config.pivot_image_tokens and visual == length:
        return PruningOutcome.NO_PIVOTS, spans
    return PruningOutcome.APPLIED, spans


def prune_prompt(
    backend: Backend, embeddings: Tensor, image_spans: Sequence[tuple[int, int]], config: VisualPrunerConfig
) -> PrunedPrompt:
    """Choose the tokens of one prompt; ``embeddings`` [L,D] with the images' rows in their places."""
    outcome, spans = plan_spans(image_spans, embeddings.shape[0], config)
    before = sum(span.stop - span.start for span in spans)
    if outcome is not PruningOutcome.APPLIED:
        return PrunedPrompt(PruningReport(outcome, before, before))
    keep = backend.select_tokens(embeddings, spans, config.pivot_text_tokens, config.pivot_image_tokens)
    after = sum(span.quota for span in spans)
    return PrunedPrompt(PruningReport(outcome, before, after), tuple(keep.tolist()))


def _bad(sentence: str) -> RequestError:
    return RequestError(f"visual_pruner.{sentence}.", RefusalCode.BAD_PARAMETER)
