"""A policy checkpoint: its weights, its language model seen as a checkpoint of its own, its statistics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..action.normalization import IDENTITY, EpsilonRule, Normalization, NormalizationKind
from ..errors import CheckpointError, PolicyError
from ..json_values import finite_number, shown
from .checkpoint import Checkpoint
from .huggingface_checkpoint import CONFIG, PROCESSOR_FILES, HuggingFaceCheckpoint, read_bytes, read_json_object
from .openpi_layout import is_openpi, refuse_other_layouts, statistics_files
from .safetensors_file import SafetensorsFile

LANGUAGE_FOLDER = "vlm"
ROOT = "model."
RAW_KINDS = ("Gr00tN1d7", "alpamayo_r1")  # of checkpoints that are not lerobot's, by their model_type
RAW_FILES = ("statistics.json", "embodiment_id.json", "processor_config.json")
PREPROCESSOR = "preprocessor_config.json"
PIPELINES = {"observation.state": "policy_preprocessor.json", "action": "policy_postprocessor.json"}
STEPS = ("normalizer_processor", "unnormalizer_processor")

# lerobot's names of normalisations -> kind, the two statistics, where its small number goes
_MODES = {
    "MEAN_STD": (NormalizationKind.MEAN_STD, "mean", "std", EpsilonRule.FORWARD),
    "MIN_MAX": (NormalizationKind.RANGE, "min", "max", EpsilonRule.WHERE_ZERO),
    "QUANTILES": (NormalizationKind.RANGE, "q01", "q99", EpsilonRule.WHERE_ZERO),
    "QUANTILE10": (NormalizationKind.RANGE, "q10", "q90", EpsilonRule.WHERE_ZERO),
}


def is_policy(path: Path) -> bool:
    """Whether a folder holds a policy: its configuration has lerobot's type and features, or is of a known kind.

    :raises CheckpointError: it holds a policy in files that cannot be read as they are.
    """
    refuse_other_layouts(path)
    if not (path / CONFIG).is_file():
        return False
    config = read_json_object(path / CONFIG)
    lerobot = isinstance(config.get("type"), str) and "output_features" in config
    return lerobot or is_openpi(config) or config.get("model_type") in RAW_KINDS


class PartCheckpoint:
    """Some tensors of a checkpoint under other names, with another configuration; ``names`` maps new to old."""

    def __init__(
        self,
        whole: Checkpoint,
        names: Mapping[str, str],
        config: Mapping[str, Any],
        tokenizer: Mapping[str, bytes],
        processor: Mapping[str, bytes],
    ) -> None:
        self._whole, self._names, self._tokenizer, self._processor = whole, names, tokenizer, processor
        self.config = config
        self.shapes = {name: whole.shapes[stored] for name, stored in names.items()}
        self.source, self.licence, self.weight_bytes = whole.source, whole.licence, whole.weight_bytes
        self.eos_token_ids = whole.eos_token_ids

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        return self._whole.read_rows(self._names[name], start, stop)

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """See ``Checkpoint.read_int8_blocks``."""
        return self._whole.read_int8_blocks(self._names[name], start, stop)

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.tokenizer_files``."""
        return self._tokenizer

    def processor_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.processor_files``; for questions about pictures, since a policy fits its own itself."""
        return self._processor

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``."""
        return self._whole.digest(progress)

    def close(self) -> None:
        """Nothing: the whole closes its files."""


class PolicyCheckpoint(HuggingFaceCheckpoint):
    """See the module. :raises CheckpointError: as ``HuggingFaceCheckpoint``."""

    @property
    def kind(self) -> str:
        """The policy's type: smolvla, pi0, openpi_pi0, Gr00tN1d7, ..."""
        if is_openpi(self.config):
            return "openpi_pi05" if "time_mlp_in.weight" in self.shapes else "openpi_pi0"
        return str(self.config.get("type") or self.config.get("model_type"))

    @property
    def root(self) -> str:
        """What the names of the policy's own tensors begin with: ``model.``, or nothing in converted checkpoints."""
        return ROOT if any(name.startswith(ROOT) for name in self.shapes) else ""

    def language_config(self, known: Mapping[str, Mapping[str, Any]], key: str) -> Mapping[str, Any]:
        """The configuration of the language model: ``vlm/config.json``, or that of a ``known`` one named under ``key``.

        :raises CheckpointError: neither; the sentence says where to put it.
        """
        beside = self.path / LANGUAGE_FOLDER / CONFIG
        if beside.is_file():
            return read_json_object(beside)
        name = self.config.get(key)
        if isinstance(name, str) and name in known:
            return known[name]
        raise CheckpointError(
            f"{self.path} does not have the dimensions of its language model {name!r}; put that model's config.json at "
            f"{beside}."
        )

    def text_config(self, known: Mapping[str, Mapping[str, Any]], key: str) -> Mapping[str, Any]:
        """The part of it that is about text. :raises CheckpointError: it has none."""
        text = self.language_config(known, key).get("text_config")
        if not isinstance(text, dict):
            raise CheckpointError(
                f"the language model's config.json has the text_config {text!r}; want its dimensions."
            )
        return text

    def part(self, prefix: str, config: Mapping[str, Any], to: str = "") -> Checkpoint:
        """The tensors whose names begin with ``prefix``, with ``to`` in its place, as a checkpoint of its own."""
        names = {to + name.removeprefix(prefix): name for name in self.shapes if name.startswith(prefix)}
        return PartCheckpoint(self, names, config, self.tokenizer_files(), self.processor_files())

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Those beside the weights, else those of the folder of the language model."""
        if (self.path / "tokenizer.json").exists():
            return super().tokenizer_files()
        folder = self.path / LANGUAGE_FOLDER
        if (folder / "tokenizer.json").exists():
            return _TokenizerFolder(folder).tokenizer_files()
        raise CheckpointError(
            f"{self.path} has no tokenizer; put the tokenizer.json of its language model beside the weights or into "
            f"{folder}."
        )

    def processor_files(self) -> Mapping[str, bytes]:
        """Those beside the weights, and of the others those in the folder of the language model."""
        folder = self.path / LANGUAGE_FOLDER
        beside = {name: read_bytes(folder / name) for name in PROCESSOR_FILES if (folder / name).is_file()}
        return {**beside, **super().processor_files()}

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``; statistics and the language model's configuration count too."""
        checksum = hashlib.sha256(super().digest(progress).encode())
        beside = [self.path / LANGUAGE_FOLDER / name for name in (CONFIG, PREPROCESSOR)]
        beside += statistics_files(self.path).values()
        for file in sorted([*self.path.glob("policy_*"), *map(self.path.joinpath, RAW_FILES), *beside]):
            if file.is_file():
                checksum.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        return checksum.hexdigest()

    def normalization(self, feature: str, kind: str, width: int) -> Normalization:
        """How the numbers of a feature (of the kind STATE or ACTION) are normalised.

        :raises CheckpointError: the statistics are missing, of another width, or of a kind that is not known.
        """
        step = self._step(PIPELINES[feature])
        settings = (step or {}).get("config", {})
        modes = settings.get("norm_map") or self.config.get("normalization_mapping") or {}
        mode = modes.get(kind) if isinstance(modes, dict) else modes
        if mode == "IDENTITY":
            return IDENTITY
        if not isinstance(mode, str) or mode not in _MODES:
            raise CheckpointError(
                f"the policy normalises {kind} by {shown(mode)}; want IDENTITY or one of {', '.join(_MODES)}."
            )
        shape, low, high, rule = _MODES[mode]
        least, most = (self._statistic(step, feature, name, width) for name in (low, high))
        try:
            return Normalization(shape, least, most, finite_number("eps", settings.get("eps", 1e-8)), rule)
        except (PolicyError, ValueError) as error:
            raise CheckpointError(f"{self.path}: {feature}: {error}") from None

    def _step(self, pipeline: str) -> Mapping[str, Any] | None:
        """The step of a pipeline that holds statistics; None in checkpoints from before there were pipelines."""
        path = self.path / pipeline
        if not path.exists():
            return None
        steps = read_json_object(path).get("steps")
        found = [
            row for row in (steps if isinstance(steps, list) else [])
            if isinstance(row, dict) and row.get("registry_name") in STEPS
        ]  # fmt: skip
        if len(found) != 1 or not isinstance(found[0].get("config"), dict):
            raise CheckpointError(f"{path} has {len(found)} steps that normalise; want one: fetch it again.")
        return found[0]

    def _statistic(self, step: Mapping[str, Any] | None, feature: str, name: str, width: int) -> tuple[float, ...]:
        if step is None:  # kept among the weights, before there were pipelines
            owner = "unnormalize_outputs" if feature == "action" else "normalize_inputs"
            stored = f"{owner}.buffer_{feature.replace('.', '_')}.{name}"
            if stored not in self.shapes:
                raise CheckpointError(f"{self.path} has no statistics: neither {PIPELINES[feature]} nor {stored!r}.")
            values = self.read_rows(stored, 0, self.shapes[stored][0])
        else:
            file = step.get("state_file")
            if not isinstance(file, str) or Path(file).name != file:
                raise CheckpointError(
                    f"{self.path / PIPELINES[feature]} names no file of statistics; take a checkpoint that was "
                    "trained on "
                    "your robot, or write its statistics with lerobot."
                )
            statistics = SafetensorsFile(self.path / file)
            try:
                if f"{feature}.{name}" not in statistics.entries:
                    raise CheckpointError(f"{self.path / file} lacks {feature}.{name}; fetch it again.")
                shape = statistics.entries[f"{feature}.{name}"].shape
                values = statistics.read_rows(f"{feature}.{name}", 0, shape[0] if shape else 0)
            finally:
                statistics.file.close()
        if values.shape != (width,):
            raise CheckpointError(
                f"{self.path}: the statistics of {feature} have shape {values.shape}; the policy has {width} numbers "
                "there."
            )
        return tuple(float(value) for value in values)


class _TokenizerFolder(HuggingFaceCheckpoint):
    """A folder that is only asked for its tokenizer."""

    def __init__(self, path: Path) -> None:
        self.path = path


def stored_under(prefixes: Mapping[str, str], root: str, name: str) -> str:
    """The stored name of a tensor that the graph calls ``name``: the first of ``prefixes`` that fits is replaced."""
    prefix = next(prefix for prefix in prefixes if name.startswith(prefix))
    return root + prefixes[prefix] + name.removeprefix(prefix)
