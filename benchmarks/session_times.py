"""When ONNX Runtime works: the start and end of every session call of this process. What lies between is Python."""

from __future__ import annotations

import importlib
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

Span = tuple[float, float]  # seconds of time.monotonic


def watch_sessions() -> list[Span]:
    """From now on, every call of every ``InferenceSession`` appends its span to the list that is returned."""
    return watch_calls(importlib.import_module("onnxruntime").InferenceSession, "run", "run_with_iobinding")


def watch_calls(owner: Any, *names: str) -> list[Span]:
    """The same for methods of a class, or of one object."""
    spans: list[Span] = []
    for name in names:
        original = getattr(owner, name)

        def timed(*arguments: Any, _call: Any = original, **options: Any) -> Any:
            start = time.monotonic()
            try:
                return _call(*arguments, **options)
            finally:
                spans.append((start, time.monotonic()))

        setattr(owner, name, timed)
    return spans


def median_share_between(spans: Sequence[Span]) -> float:
    """Percent of a step, from the start of one call to the start of the next, that lies outside the call.

    The median over all steps, so that the pauses between requests do not count.

    :raises ValueError: fewer than two calls.
    """
    if len(spans) < 2:
        raise ValueError(f"{len(spans)} session calls were seen; want at least 2.")
    steps = [(end - start, later - start) for (start, end), (later, _) in itertools.pairwise(spans)]
    return 100 * statistics.median(1 - inside / step for inside, step in steps)
