"""Between robot units and the numbers that a network was trained on; every convention is data.

Conventions differ in where their small number goes, and it matters where a dimension hardly varies: openpi adds it to
every range in both directions, lerobot adds it to a deviation on the way in alone, and to a range only where that is 0.
openpi computes in 64-bit numbers, the others in 32-bit ones, which decides into which bin a state falls that is read in
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from ..errors import PolicyError
from ..json_values import finite_number, shown

_LARGEST = float(np.finfo(np.float32).max)


class NormalizationKind(str, Enum):
    """Which two statistics map to which two numbers."""

    IDENTITY = "identity"
    MEAN_STD = "mean_std"  # low is the mean, high the standard deviation
    RANGE = "range"  # low and high (quantiles, or least and most) become -1 and 1


class EpsilonRule(str, Enum):
    """Where ``epsilon`` is added to the deviation or range."""

    ALWAYS = "always"
    FORWARD = "forward"  # only from robot units to the network's
    WHERE_ZERO = "where_zero"  # instead of a range that is 0
    MIDDLE = "middle"  # nowhere: a range that is 0 becomes 0, the middle (GR00T)


@dataclass(frozen=True)
class Normalization:
    """A map of every dimension on its own; ``low`` and ``high`` have one entry for each."""

    kind: NormalizationKind
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    epsilon: float = 0.0
    rule: EpsilonRule = EpsilonRule.ALWAYS
    clip: bool = False  # the network's numbers are held within -1 and 1, in both directions

    def __post_init__(self) -> None:
        try:
            for name in ("low", "high"):
                for value in getattr(self, name):
                    finite_number(f"a statistic ({name})", value)
            finite_number("epsilon", self.epsilon)
        except ValueError as error:
            raise PolicyError(f"{error}; take the statistics that belong to the checkpoint.") from None
        if self.kind is NormalizationKind.IDENTITY:
            return
        if len(self.low) != len(self.high) or not self.low:
            raise PolicyError(
                f"statistics have {len(self.low)} and {len(self.high)} entries; want as many of each: take those that "
                "belong to the checkpoint."
            )
        if self.epsilon < 0 or any(value < 0 for value in self._ranges()):
            raise PolicyError(
                "statistics hold a negative deviation or a range whose end lies below its start; take those that "
                "belong to the checkpoint."
            )
        if any(abs(value) > _LARGEST for value in (*self.low, *self.high, *self._ranges())):
            raise PolicyError("statistics are beyond 32-bit numbers; take those that belong to the checkpoint.")

    @property
    def width(self) -> int:
        """Dimensions; 0 where any number will do."""
        return len(self.low)

    def normalize(self, values: np.ndarray) -> np.ndarray:
        """Robot units [..., n] as the network's numbers [..., n]: float64 where the rule is ALWAYS, else float32.

        :raises PolicyError: n is not the number of statistics.
        """
        x = self._checked(values)
        if self.kind is NormalizationKind.IDENTITY:
            return x
        scaled = (x - np.array(self.low, dtype=x.dtype)) / self._divisor(forward=True)
        if self.kind is NormalizationKind.RANGE:
            scaled = scaled * x.dtype.type(2) - x.dtype.type(1)
        if self.rule is EpsilonRule.MIDDLE:
            scaled = np.where(np.array(self._ranges()) == 0, x.dtype.type(0), scaled)
        result: np.ndarray = np.clip(scaled, -1, 1) if self.clip else scaled
        return result

    def unnormalize(self, values: np.ndarray) -> np.ndarray:
        """The network's numbers [..., n] in robot units [..., n], of the same type as ``normalize`` gives.

        :raises PolicyError: n is not the number of statistics.
        """
        x = self._checked(values)
        if self.kind is NormalizationKind.IDENTITY:
            return x
        if self.clip:
            x = np.clip(x, -1, 1)
        if self.kind is NormalizationKind.RANGE:
            x = (x + x.dtype.type(1)) / x.dtype.type(2)
        result: np.ndarray = x * self._divisor(forward=False) + np.array(self.low, dtype=x.dtype)
        return result

    def _checked(self, values: np.ndarray) -> np.ndarray:
        x = np.asarray(values, dtype=self._number)
        if self.width and x.shape[-1:] != (self.width,):
            raise PolicyError(
                f"values have shape {x.shape} where statistics are for {self.width} dimensions; they must agree."
            )
        return x

    @property
    def _number(self) -> type[np.floating[Any]]:
        known = self.kind is not NormalizationKind.IDENTITY and self.rule is EpsilonRule.ALWAYS
        return np.float64 if known else np.float32

    def _ranges(self) -> list[float]:
        if self.kind is NormalizationKind.MEAN_STD:
            return list(self.high)
        return [high - low for low, high in zip(self.low, self.high, strict=True)]

    def _divisor(self, *, forward: bool) -> np.ndarray:
        divisor = np.array(self._ranges(), dtype=self._number)
        epsilon = divisor.dtype.type(self.epsilon)
        if self.rule is EpsilonRule.WHERE_ZERO:
            return np.where(divisor == 0, epsilon, divisor)
        if self.rule is EpsilonRule.MIDDLE:
            return np.where(divisor == 0, divisor.dtype.type(1), divisor) if forward else divisor
        return divisor + epsilon if forward or self.rule is EpsilonRule.ALWAYS else divisor

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds it."""
        return {
            "kind": self.kind.value,
            "low": list(self.low),
            "high": list(self.high),
            "epsilon": self.epsilon,
            "rule": self.rule.value,
            "clip": self.clip,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Normalization:
        """:raises PolicyError: an unknown kind or rule, or bad statistics.

        :raises KeyError, TypeError: a key is missing or of the wrong type.
        """
        for key, options in (("kind", NormalizationKind), ("rule", EpsilonRule)):
            if content[key] not in [option.value for option in options]:
                raise PolicyError(
                    f"normalization has the {key} {shown(content[key])}; want one of "
                    f"{', '.join(option.value for option in options)}."
                )
        return cls(
            NormalizationKind(content["kind"]),
            tuple(content["low"]),
            tuple(content["high"]),
            content["epsilon"],
            EpsilonRule(content["rule"]),
            bool(content["clip"]),
        )


IDENTITY = Normalization(NormalizationKind.IDENTITY)
