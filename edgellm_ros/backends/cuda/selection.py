"""The choice of visual tokens on a GPU: two kernels measure, the host chooses by their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..base import TokenSpan
from ..token_selection import choose_rows
from .device import Device
from .kernels import Kernels
from .tensor import CUDAMemory, CUDATensor

_THREADS = 256
_INTEGER, _REAL = np.dtype(np.int32), np.dtype(np.float32)


class TokenSelection:
    """Keeps its memory from one prompt to the next."""

    def __init__(self, device: Device, kernels: Kernels) -> None:
        self._device = device
        self._kernels = kernels
        self._memory: dict[str, CUDAMemory] = {}

    def select(
        self, embeddings: CUDATensor, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int
    ) -> np.ndarray:
        """See ``token_selection.select_tokens``; embeddings float32 [L,D]."""
        length, width = embeddings.shape
        magnitudes, norms = self._take("magnitudes", length), self._take("norms", length)
        self._kernels["row_measures"].launch((length, 1, 1), _THREADS, embeddings.address, magnitudes, norms, width)

        def cosines(wanted: Sequence[tuple[TokenSpan, np.ndarray]]) -> list[np.ndarray]:
            places = np.concatenate([np.arange(span.start, span.stop) for span, _ in wanted]).astype(_INTEGER)
            lengths = [span.stop - span.start for span, _ in wanted]
            owners = np.repeat(np.arange(len(wanted), dtype=_INTEGER), lengths)
            count = max(len(pivots) for _, pivots in wanted)
            table = np.full((len(wanted), max(count, 1)), -1, _INTEGER)
            for row, (_, pivots) in zip(table, wanted, strict=True):
                row[: len(pivots)] = pivots
            result = self._take("cosines", len(places) * count)
            self._kernels["pivot_cosines"].launch(
                (len(places), 1, 1), _THREADS, embeddings.address, norms, self._put("places", places),
                self._put("owners", owners), self._put("pivots", table), result, width, count,
            )  # fmt: skip
            values = self._device.read(result, (len(places), count), _REAL).wait()
            parts = np.split(values, np.cumsum(lengths)[:-1])
            return [np.ascontiguousarray(part[:, : len(row)].T) for part, (_, row) in zip(parts, wanted, strict=True)]

        sums = self._device.read(magnitudes, (length,), _REAL).wait()
        return choose_rows(sums, spans, text_pivots, image_pivots, cosines)

    def _take(self, name: str, count: int) -> int:
        """The address of memory for ``count`` numbers of 32 bits."""
        held = self._memory.get(name)
        if held is None or held.size < 4 * count:
            held = self._memory[name] = CUDAMemory(self._device, 4 * max(count, 1), zero=False)
        return held.address

    def _put(self, name: str, values: np.ndarray) -> int:
        address = self._take(name, math.prod(values.shape))
        self._device.write(address, values)
        return address
