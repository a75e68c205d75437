"""The choice of visual tokens on a GPU: four kernels choose, the host reads where the rows that stay stand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ..base import TokenSpan
from ..token_selection import MOST_PIVOTS
from .device import Device
from .kernels import Kernels
from .tensor import CUDAMemory, CUDATensor

_THREADS, _CHOOSERS = 256, 1024
_INTEGER = np.dtype(np.int32)


class TokenSelection:
    """Keeps its memory from one prompt to the next."""

    def __init__(self, device: Device, kernels: Kernels) -> None:
        self._device = device
        self._kernels = kernels
        self._memory: dict[str, CUDAMemory] = {}

    def select(
        self, embeddings: CUDATensor, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int
    ) -> np.ndarray:
        """See ``token_selection.select_tokens``; embeddings float32 [L,D].

        :raises ValueError: more pivots than the kernels have room for.
        """
        if max(text_pivots, image_pivots) > MOST_PIVOTS:
            raise ValueError(f"{text_pivots} and {image_pivots} pivots were asked for; want {MOST_PIVOTS} at most.")
        length, width = embeddings.shape
        if not spans:
            return np.arange(length, dtype=_INTEGER)
        text = length - sum(span.stop - span.start for span in spans)
        text_pivots = min(text_pivots, text)
        table, count = _describe(spans, text, text_pivots + image_pivots > 0)
        described = self._take("spans", table.size)
        self._device.write(described, table)
        magnitudes, norms, owners = (self._take(name, length) for name in ("magnitudes", "norms", "owners"))
        cosines = self._take("cosines", length * (text_pivots + image_pivots))
        chosen, answer = self._take("chosen", -(-length // 4)), self._take("answer", count)
        pivots = self._take("pivots", (len(spans) + 1) * MOST_PIVOTS)
        packed = struct.pack("=Qiii4x", pivots, len(spans), image_pivots, text_pivots)
        kernels, rows = self._kernels, embeddings.address
        kernels["row_measures"].launch(
            (length, 1, 1), _THREADS, rows, described, magnitudes, norms, owners, width, len(spans)
        )
        kernels["choose_pivots"].launch(
            (len(spans) + 1, 1, 1), _CHOOSERS, magnitudes, owners, described, packed, length
        )
        kernels["pivot_cosines"].launch(
            (length, 1, 1), _THREADS, rows, norms, owners, described, packed, cosines, width
        )
        kernels["choose_rows"].launch((len(spans), 1, 1), _CHOOSERS, cosines, described, packed, chosen, answer, length)
        places: np.ndarray = self._device.read(answer, (count,), _INTEGER).wait()
        return places

    def _take(self, name: str, count: int) -> int:
        """The address of memory for ``count`` numbers of 32 bits."""
        held = self._memory.get(name)
        if held is None or held.size < 4 * count:
            held = self._memory[name] = CUDAMemory(self._device, 4 * max(count, 1), zero=False)
        return held.address


def _describe(spans: Sequence[TokenSpan], text: int, pivots: bool) -> tuple[np.ndarray, int]:
    """What the kernels read of the spans, int32 [spans, 4], and how many rows stay; none of a span without pivots."""
    table = np.empty((len(spans), 4), _INTEGER)
    visual = kept = 0
    for row, (start, stop, quota) in zip(table, spans, strict=True):
        stays = min(quota, stop - start) if pivots else 0
        row[:] = start, stop, stays, start - visual + kept
        visual += stop - start
        kept += stays
    return table, text + kept
