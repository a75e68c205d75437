"""Policies of any shape with seeded random weights, for measuring speed without a download.

Only ``config.json`` is read, beside what else a folder of that policy may hold: the language model's configuration and
tokenizer under ``vlm``, and statistics. What is missing of the tokenizer and of lerobot's statistics is made up; the
files that say which robots a GR00T is for must be there, and those of the language model of an Alpamayo-R1.
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
from ..json_values import is_folder
from .action_families import alpamayo_files, find_family, groot_files, pi_files, smolvla_files
from .checkpoint import Checkpoint
from .families.config_values import whole_number
from .huggingface_checkpoint import CONFIG, read_json_object
from .policy_checkpoint import LANGUAGE_FOLDER, ROOT, PolicyCheckpoint, is_policy
from .policy_settings import PolicySettings
from .random_rows import check_seed, random_rows
from .random_vision import image_template, image_tokens
from .random_weights import RandomCheckpoint, open_random_checkpoint, tiny_tokenizer_files
from .vision_families import read_tower

ALPAMAYO = "alpamayo_r1"
# kinds of policies that are made up -> language models that they know, and the key that names one
_LANGUAGES: Mapping[str, tuple[Mapping[str, Mapping[str, Any]], str]] = {
    "smolvla": (smolvla_files.KNOWN_LANGUAGE_MODELS, "vlm_model_name"),
    "pi0": (pi_files.KNOWN_VARIANTS, "paligemma_variant"),
    "pi05": (pi_files.KNOWN_VARIANTS, "paligemma_variant"),
    "Gr00tN1d7": (groot_files.KNOWN_BACKBONES, "model_name"),
    ALPAMAYO: ({}, "vlm_name_or_path"),
}
_MADE_UP = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "q01": -1.0, "q99": 1.0, "q10": -1.0, "q90": 1.0}


class RandomPolicyCheckpoint(PolicyCheckpoint):
    """A ``PolicyCheckpoint`` without weights; equal seeds give equal ones.

    :raises CheckpointError: the policy is not built, or of a kind that is not made up.
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
        if self.kind not in _LANGUAGES:
            raise CheckpointError(
                f"random weights were asked for the policy {self.kind}, whose config.json does not tell all sizes; "
                f"they are made for {', '.join(_LANGUAGES)}: give a checkpoint."
            )
        self._parts: list[RandomCheckpoint] = []
        self.shapes = self._sizes_of_pi()
        wanted = family.parse(self, PolicySettings()).tensors()
        self.shapes = {family.stored_name(self.root, name): shape for name, shape in wanted.items()} | self._rest()

    def _language(self) -> Mapping[str, Any]:
        return self.language_config(*_LANGUAGES[self.kind])

    def _sizes_of_pi(self) -> dict[str, tuple[int, ...]]:
        """The tensors from which pi0 and pi0.5 tell what they are, and how wide their expert is."""
        if self.kind not in ("pi0", "pi05"):
            return {}
        name = self.config.get("action_expert_variant")
        variant = pi_files.KNOWN_VARIANTS.get(name) if isinstance(name, str) else None
        if variant is None:
            raise CheckpointError(
                f"config.json has the action_expert_variant {name!r}; want one of {', '.join(pi_files.KNOWN_VARIANTS)}."
            )
        text = variant["text_config"]
        gate = f"{ROOT}{pi_files.GEMMA_EXPERT}model.layers.0.mlp.gate_proj.weight"
        own = "time_mlp_in" if self.kind == "pi05" else "state_proj"
        return {f"{ROOT}{own}.weight": (), gate: (text["intermediate_size"], text["hidden_size"])}

    def _rest(self) -> dict[str, tuple[int, ...]]:
        """Tensors of a language model that ``part`` does not make, beyond those of the action graphs."""
        if self.kind == "smolvla":
            return {}
        if self.kind == ALPAMAYO:  # it has the whole of it
            self._parts.append(RandomCheckpoint(alpamayo_files.language_config(self), self._seed))
            return {f"{alpamayo_files.LANGUAGE}{name}": shape for name, shape in self._parts[-1].shapes.items()}
        whole = self._language()
        text, tower = whole["text_config"], None
        prefix = f"{ROOT}{pi_files.LANGUAGE}"
        if self.kind == "Gr00tN1d7":
            prefix, tower = f"{groot_files.BACKBONE}{groot_files.LANGUAGE}", read_tower(whole)
        images = {} if tower is None else tower.tensors()
        return {
            f"{prefix}embed_tokens.weight": (text["vocab_size"], text["hidden_size"]),
            f"{prefix}norm.weight": (text["hidden_size"],),
            **{f"{groot_files.BACKBONE}{name}": shape for name, shape in images.items()},
        }

    @property
    def source(self) -> str:
        """The seed and the kind."""
        return f"random weights of seed {self._seed}, shape of {self.kind}"

    @property
    def root(self) -> str:
        """As lerobot names tensors, where they are its own."""
        return "" if self.kind == ALPAMAYO else ROOT

    def part(self, prefix: str, config: Mapping[str, Any], to: str = "") -> Checkpoint:
        """A random language model with its image tower."""
        self._parts.append(RandomCheckpoint(config, self._seed))
        return self._parts[-1]

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        shape = self.shapes[name]
        values = random_rows(self._seed, name, shape, start, stop)
        if name.endswith(".W"):  # one matrix [inputs, outputs] for each robot
            return values * np.float32(shape[1] ** -0.5)
        if len(shape) > 1 and not name.endswith(".b"):
            return values * np.float32(math.prod(shape[1:]) ** -0.5)
        return np.float32(name.endswith(".weight")) + np.float32(0.1) * values

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """The folder's own, else one of bytes."""
        if any((folder / "tokenizer.json").is_file() for folder in (self.path, self.path / LANGUAGE_FOLDER)):
            return super().tokenizer_files()
        whole = self._language()
        size = whole["text_config"]["vocab_size"]
        if self.kind == ALPAMAYO:  # the rest of the vocabulary is its own
            size = whole_number(self.config, "traj_token_start_idx")
        return tiny_tokenizer_files(size, image_tokens(whole, size), image_template(whole))

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
    file = path / CONFIG if is_folder(path) else path
    if file.name == CONFIG and is_policy(file.parent):
        return RandomPolicyCheckpoint(file, seed)
    return open_random_checkpoint(path, seed)
