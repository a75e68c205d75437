"""Pixels as cameras give them, 0 to 255: what a processor does to them goes into the first product of a tower.

A processor takes a mean off and divides, which is a factor and an offset for each channel; so are the weights of the
kernel that meets the patches. The images then travel as bytes, and nothing is done to a pixel before the tower. There
they become numbers from -1 to 1, which every precision holds exactly, so that sums are no larger than they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import EngineDirectoryError
from ...vision.processor_settings import FILES, processor_settings
from ..elements import encode
from ..lowerings.vision import ZERO
from ..weights import Weight


@dataclass(frozen=True)
class Normalisation:
    """``(level * factor - mean) / std`` of each channel."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_normalisation(config: Mapping[str, Any], files: Mapping[str, bytes]) -> Normalisation | None:
    """What the processor of a checkpoint does; None where its files are missing or are for the runtime to refuse."""
    try:
        found = {name: json.loads(content) for name, content in files.items() if name in FILES}
        settings = processor_settings(Path("checkpoint"), {"config.json": dict(config), **found}, normalise=True)
        settings.check_steps()
        settings.pixel_table()
        return Normalisation(settings.rescale_factor, tuple(settings.mean.tolist()), tuple(settings.std.tolist()))
    except (EngineDirectoryError, ValueError, AttributeError, RecursionError):
        return None


def folded(kernel: Weight, bias: Weight | None, normalisation: Normalisation, element: str) -> tuple[Weight, Weight]:
    """Kernel [rows,channels,...] as a matrix [rows,columns], and bias [rows], for ``(level - ZERO) / ZERO``.

    The bias makes good for how ``element`` rounds the matrix: means are as large as the pixels themselves.
    """
    each = int(np.prod(kernel.shape[2:]))
    factors = np.repeat(normalisation.factor * ZERO / np.array(normalisation.std), each)
    means = np.repeat(np.array(normalisation.mean) / normalisation.factor / ZERO - 1, each)

    def read(start: int, stop: int) -> np.ndarray:
        values = kernel.read(start, stop).reshape(stop - start, -1)
        return np.asarray(values * factors, dtype=np.float32)

    @cache
    def offsets() -> np.ndarray:
        own = np.zeros(kernel.rows) if bias is None else bias.read(0, bias.rows).astype(np.float64)
        for start, stop in kernel.bands():
            own[start:stop] -= _rounded(read(start, stop), element) @ means
        return own.astype(np.float32)

    matrix = Weight(f"{kernel.name}.levels", (kernel.rows, each * kernel.shape[1]), read, lambda start, stop: None)
    name = kernel.name if bias is None else bias.name
    shift = Weight(f"{name}.offset", (kernel.rows,), lambda start, stop: offsets()[start:stop], lambda *_: None)
    return matrix, shift


def _rounded(values: np.ndarray, element: str) -> np.ndarray:
    stored = encode(values, element)
    if element == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)
