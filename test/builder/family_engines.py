"""Tiny random checkpoints of every family, their engines, and how far an engine is from the reference."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from reference_decoder import ReferenceDecoder
from reference_llama import read_folder
from seam_runner import ragged_logits
from tiny_families import TINY_FAMILIES

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_checkpoint
from edgellm_ros.engine_format import BuilderLimits

TOLERANCE = 1e-4
LIMITS = BuilderLimits(max_batch_size=4, max_input_len=32, max_kv_cache_capacity=48)
LOWERINGS = ("onnxruntime", "tensorrt", "tensorrt_legacy")

_folder = TemporaryDirectory(prefix="edgellm-families-")
atexit.register(_folder.cleanup)


def _tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 290, count).tolist()


ROWS = [_tokens(count, seed) for seed, count in enumerate((18, 25, 12))]


@cache
def checkpoint(family: str) -> Path:
    """A folder of random weights, wide enough that every layer shows in the logits."""
    return write_random_checkpoint(Path(_folder.name) / family / "checkpoint", TINY_FAMILIES[family], seed=11)


@cache
def engine(family: str, lowering: str, precision: str = "fp32") -> Path:
    """The engine directory of one family under one lowering."""
    output = Path(_folder.name) / family / f"{lowering}-{precision}"
    return build_engine(checkpoint(family), output, lowering=lowering, precision=precision, limits=LIMITS)


@cache
def reference(family: str) -> ReferenceDecoder:
    return ReferenceDecoder(*read_folder(checkpoint(family)))


@cache
def wanted_logits(family: str) -> tuple[np.ndarray, ...]:
    return tuple(reference(family).logits(ids) for ids in ROWS)


def distance(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest difference of any logit."""
    return max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True))


def distance_to_reference(path: Path, family: str) -> float:
    """Of ragged chunks, decode steps and rows alone."""
    return distance(ragged_logits(path, ROWS), wanted_logits(family))
