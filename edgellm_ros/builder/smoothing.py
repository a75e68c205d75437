"""Inputs of matrices made more alike, so that rounding them to eight bits does less harm (the SmoothQuant method).

ONNX Runtime rounds the inputs of quantised matrices to eight bits, 32 at a time under one scale: one large input costs
its neighbours their precision. Where inputs come out of a norm, or of the product with a gate, each can be divided by a
factor and the weights it meets multiplied by it. The model stays what it was, and nothing is added to what has to be
computed: the factors go into the weights before. They are the square roots of how large each input is over a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .families.base import DecoderConfig
from .families.decoder import EMBEDDING, FINAL_NORM, HEAD
from .input_moments import InputMoments
from .weights import Weight

_EXPONENT = 0.25  # of the mean square: half of the size
_FLOOR = 1e-4  # of the mean square of all inputs: no input counts as smaller
_LARGEST = 64.0

Factors = Callable[[], "np.ndarray | None"]
Change = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
RowScales = Callable[[np.ndarray, int, int], np.ndarray]


def smoothing_factors(squares: np.ndarray) -> np.ndarray:
    """Factors float32 [columns] of inputs whose mean squares are given; their geometric mean is 1."""
    mean = float(squares.mean())
    if not np.isfinite(squares).all() or mean <= 0:
        return np.ones(len(squares), dtype=np.float32)
    factors = np.maximum(squares.astype(np.float64) / mean, _FLOOR) ** _EXPONENT
    factors /= np.exp(np.log(factors).mean())
    clipped: np.ndarray = np.clip(factors, 1 / _LARGEST, _LARGEST).astype(np.float32)
    return clipped


def _changed(
    weight: Weight, factors: Factors, change: Change, scales: RowScales | None = None, name: str = ""
) -> Weight:
    """The weight after ``change(values, factors, start, stop)``, once there are factors.

    ``scales(factors, start, stop)`` is what that means for the scale of each row, where integers stay as they are.
    """

    def read(start: int, stop: int) -> np.ndarray:
        values, found = weight.read(start, stop), factors()
        return values if found is None else np.asarray(change(values, found, start, stop), dtype=np.float32)

    def read_int8(start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        found = factors()
        if found is not None and scales is None:
            return None
        blocks = weight.read_int8(start, stop)
        if blocks is None or found is None or scales is None:
            return blocks
        return blocks[0], np.asarray(blocks[1] * scales(found, start, stop)[:, None], dtype=np.float32)

    return Weight(name or weight.name, weight.shape, read, read_int8)


def _columns_times(weight: Weight, factors: Factors, name: str = "") -> Weight:
    return _changed(weight, factors, lambda values, found, start, stop: values * found, name=name)


def _rows_divided(weight: Weight, factors: Factors, offset: float = 0.0) -> Weight:
    """Rows of a matrix, or the entries of a vector that is stored as its distance from ``offset``."""

    def change(values: np.ndarray, found: np.ndarray, start: int, stop: int) -> np.ndarray:
        divisor = found[start:stop].reshape(-1, *(1,) * (values.ndim - 1))
        return np.asarray((values + np.float32(offset)) / divisor - np.float32(offset))

    return _changed(weight, factors, change, lambda found, start, stop: 1 / found[start:stop])


@dataclass(frozen=True)
class Smoothing:
    """``weights`` are those of a decoder, smoothed as soon as ``find`` was called; before that they are as they were.

    A tied head becomes a matrix of its own.
    """

    weights: dict[str, Weight]
    factors: dict[str, np.ndarray] = field(default_factory=dict)  # matrix (its first name) -> factors of its inputs

    def find(self, squares: Mapping[str, np.ndarray]) -> None:
        """Find the factors; ``squares`` are the mean squares of the inputs of matrices, by their names."""
        for name, values in squares.items():
            first = name.split("+")[0].split("*")[0]
            if first in self._smoothed:
                self.factors[first] = smoothing_factors(values)

    def moments(self, name: str, moments: InputMoments) -> InputMoments:
        """Moments of the inputs of a matrix as they are after smoothing."""
        found = self.factors.get(name.split("+")[0].split("*")[0])
        if found is None:
            return moments
        tiles = found.reshape(-1, moments.tile)
        return InputMoments(moments.values / (tiles[:, :, None] * tiles[:, None, :]))

    @property
    def _smoothed(self) -> frozenset[str]:
        suffixes = ("self_attn.q_proj.weight", "mlp.gate_proj.weight", "mlp.down_proj.weight", HEAD)
        return frozenset(name for name in self.weights if name.endswith(suffixes))


def smoothing(config: DecoderConfig, weights: Mapping[str, Weight]) -> Smoothing:
    """The weights of a decoder, ready to be smoothed."""
    result = Smoothing(dict(weights))
    changed = result.weights

    def factors_of(matrix: str) -> Factors:
        return lambda: result.factors.get(matrix)

    def after_norm(norm: str, first: str, *others: str) -> None:
        changed[norm] = _rows_divided(changed[norm], factors_of(first), config.norm_offset)
        for name in (first, *others):
            changed[name] = _columns_times(changed[name], factors_of(first))

    if HEAD not in changed:
        changed[HEAD] = _columns_times(weights[EMBEDDING], lambda: None, HEAD)
    after_norm(FINAL_NORM, HEAD)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        projections = [f"{prefix}self_attn.{name}_proj.weight" for name in "qkv"]
        after_norm(f"{prefix}input_layernorm.weight", *projections)
        norm = "pre_feedforward_layernorm" if config.sandwich_norms else "post_attention_layernorm"
        up, down = f"{prefix}mlp.up_proj", f"{prefix}mlp.down_proj.weight"
        after_norm(f"{prefix}{norm}.weight", f"{prefix}mlp.gate_proj.weight", f"{up}.weight")
        for name in (f"{up}.weight", f"{up}.bias"):
            if name in changed:
                changed[name] = _rows_divided(changed[name], factors_of(down))
        changed[down] = _columns_times(changed[down], factors_of(down))
    return result
