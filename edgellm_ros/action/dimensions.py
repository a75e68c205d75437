"""The numbers of a state or an action: what they are called, in which units, and how the network takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import PolicyError
from ..json_values import shown
from .normalization import Normalization


@dataclass(frozen=True)
class Dimensions:
    """Names, units and statistics of a state or an action; the network takes ``padded`` numbers, zeros behind."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    padded: int
    normalization: Normalization

    def __post_init__(self) -> None:
        width = len(self.names)
        if len(self.units) != width or len(set(self.names)) != width:
            raise PolicyError(
                f"{width} dimensions have {len(self.units)} units and the names {shown(self.names)}; want one unit "
                "each and no name twice."
            )
        if self.padded < width:
            raise PolicyError(f"{width} dimensions do not fit in the {self.padded} that the network takes.")
        if self.normalization.width not in (0, width):
            raise PolicyError(
                f"statistics are for {self.normalization.width} dimensions; the policy has {width}: take those that "
                "belong to the checkpoint."
            )

    @property
    def width(self) -> int:
        """Real dimensions."""
        return len(self.names)

    def pad(self, values: np.ndarray) -> np.ndarray:
        """Normalised [..., width] as float32 [..., padded]."""
        missing = self.padded - self.width
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)]).astype(np.float32, copy=False)
