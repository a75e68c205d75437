"""Policies of any shape with seeded random weights, for measuring speed without a download.

Only ``config.json`` is read, beside what else a folder of that policy may hold: the language model's configuration and
tokenizer under ``vlm``, and statistics. What is missing of the tokenizer and the statistics is made up.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .action_families import find_family
from .checkpoint import Checkpoint
from .huggingface_checkpoint import CONFIG, read_json_object
from .policy_checkpoint import ROOT, PolicyCheckpoint, is_policy
from .policy_settings import PolicySettings
from .random_rows import check_seed, random_rows
from .random_weights import RandomCheckpoint, open_random_checkpoint

KINDS = ("smolvla",)  # of policies whose configuration tells every size
_MADE_UP = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "q01": -1.0, "q99": 1.0, "q10": -1.0, "q90": 1.0}


class RandomPolicyCheckpoint(PolicyCheckpoint):
    """A ``PolicyCheckpoint`` of lerobot's layout without weights; equal seeds give equal ones.

    :raises CheckpointError: the policy is not built, or of a layout whose files say more than its shape.
    """

    licence = "none"
    weight_bytes = 0
    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, file: Path, seed: int = 0) -> None:
        self._seed = check_seed(seed)
        self.path = file.parent
        self.config: Mapping[str, Any] = read_json_object(file)
        self.shapes = {}
        family = find_family(self.kind)
        if self.kind not in KINDS:
            raise CheckpointError(
                f"random weights were asked for a {self.kind}, whose config.json does not tell all sizes; they are "
                f"made for {', '.join(KINDS)}: give a checkpoint."
            )
        wanted = family.parse(self, PolicySettings()).tensors()
        self.shapes = {family.stored_name(ROOT, name): shape for name, shape in wanted.items()}
        self._parts: list[RandomCheckpoint] = []

    @property
    def source(self) -> str:
        """The seed and the kind."""
        return f"random weights of seed {self._seed}, shape of {self.kind}"

    @property
    def root(self) -> str:
        """As lerobot names tensors."""
        return ROOT

    def part(self, prefix: str, config: Mapping[str, Any], to: str = "") -> Checkpoint:
        """A random language model with its image tower."""
        self._parts.append(RandomCheckpoint(config, self._seed))
        return self._parts[-1]

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        shape = self.shapes[name]
        values = random_rows(self._seed, name, shape, start, stop)
        if len(shape) > 1:
            return values * np.float32(math.prod(shape[1:]) ** -0.5)
        return np.float32(name.endswith("norm.weight")) + np.float32(0.1) * values

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Never."""
        return None

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``."""
        parts = [part.digest() for part in self._parts]
        content = json.dumps([self.config, self._seed, parts], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _statistic(self, step: Mapping[str, Any] | None, feature: str, name: str, width: int) -> tuple[float, ...]:
        return (_MADE_UP[name],) * width if step is None else super()._statistic(step, feature, name, width)

    def close(self) -> None:
        """Nothing to close."""


def open_random(path: Path, seed: int = 0) -> Checkpoint:
    """Random weights for a ``config.json``, or for the one in a folder; what lies beside it counts too.

    :raises CheckpointError: it is missing, damaged, or no family builds it.
    """
    file = path / CONFIG if path.is_dir() else path
    if file.name == CONFIG and is_policy(file.parent):
        return RandomPolicyCheckpoint(file, seed)
    return open_random_checkpoint(path, seed)
