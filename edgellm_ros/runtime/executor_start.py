"""An executor made ready before the first request: every batch size run once, every decode step recorded.

Leaves nothing behind but garbage in cache slots that every sequence overwrites before it reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backends.base import SamplingRow
from ..errors import BackendError

if TYPE_CHECKING:
    from .executor import ModelExecutor

WARM_UP_LENGTH = 32  # tokens; enough to touch every kernel of a prefill, a fraction of the time of a whole chunk


def record_decode_steps(executor: ModelExecutor) -> bool:
    """See ``ModelExecutor.capture_decode_steps``."""
    rows, capacity = executor.limits.max_batch_size, executor.limits.max_kv_cache_capacity
    buckets = [executor.engine.length_bucket(1)]
    while 0 < buckets[-1] < capacity:
        buckets.append(executor.engine.length_bucket(buckets[-1] + 1))
    for row in range(rows):
        executor.start_row(row, SamplingRow(), [0])
    recorded = True
    try:
        for batch in range(1, rows + 1):
            for bucket in buckets:
                executor.decode([0] * batch, [max(0, bucket - 1)] * batch)
                recorded &= executor.calls.get(batch, 1, 0, bucket).step.record()
    except BackendError:
        return False
    return recorded


def run_every_batch_size(executor: ModelExecutor, rows: int) -> None:
    """See ``ModelExecutor.warm_up``; of up to ``rows``.

    :raises BackendError: the engine failed.
    """
    length = min(WARM_UP_LENGTH, executor.prefill_chunk, executor.limits.max_kv_cache_capacity - 2)
    for row in range(rows):
        prompt = [0] * (length if row == 0 else 1)
        executor.start_row(row, SamplingRow(), prompt)
        executor.prefill(row, prompt, 0)
    for batch in range(1, rows + 1):
        executor.decode([0] * batch, [length, *[1] * (batch - 1)])
