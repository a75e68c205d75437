"""The engine directory: what a builder writes and a runtime reads.

==========================  ==========================================================================
``config.json``             dimensions and limits, keys of the official runtime (``EngineConfig``)
``manifest.json``           builder, lowering, precision, source, licence, sizes and samples of files (``Manifest``)
``llm.onnx`` + ``.data``    the graph and its weights (``llm.engine``: a TensorRT plan beside or instead)
``embedding.safetensors``   tensor ``embedding`` [V,D] (a tied head may live in it)
``tokenizer.json``          and ``tokenizer_config.json``, ``chat_template.jinja`` where the model has one
``visual/``                 ``visual.onnx`` + ``.data`` of the image tower, its ``config.json`` and ``manifest.json``,
                            and the processor's own files; only where the model sees images
==========================  ==========================================================================

Inputs of ``llm.onnx``, all packed, rows right padded: ``inputs_embeds`` [B,S,D] float32; ``rope_cos_<kind>`` and
``rope_sin_<kind>`` [B,S,head_dim/2] float32 for each rope kind; ``past_length`` [B] int32; ``query_length`` [B] int32
(valid positions of each row's chunk); ``last_token_index`` [B,R] int32 (positions in the chunk whose logits are
wanted); caches. Output: ``logits`` [B,R,V] float32. A graph has only the inputs its family needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engine_manifest import MANIFEST_FILE, Manifest
from .errors import EngineDirectoryError
from .file_sample import check_content
from .json_values import LARGEST_FILE, finite_number, plain_text, positive_number, problem_of, shown, whole_number
from .json_values import read_json as read_json  # part of this module for its callers

CONFIG_FILE = "config.json"
GRAPH_FILE = "llm.onnx"
PLAN_FILE = "llm.engine"
EMBEDDING_FILE = "embedding.safetensors"
# config.json of an engine without weights: its tensors and the embedding by tensors of the checkpoint, and which one
BINDINGS_KEY, EMBEDDING_BINDING_KEY = "checkpoint_weight_bindings", "checkpoint_embedding"
IDENTITY_KEY = "checkpoint_identity"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
ACTION_DIRECTORY = "action"  # of the engine directory, where a policy acts
POLICY_FILE = "policy.json"  # in it
VISUAL_DIRECTORY = "visual"  # of the engine directory, or of another one, where the model sees images
VISUAL_GRAPH_FILE = "visual.onnx"
VISUAL_DATA_FILE = VISUAL_GRAPH_FILE + ".data"

_FILES = (
    CONFIG_FILE, GRAPH_FILE, PLAN_FILE, EMBEDDING_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, CHAT_TEMPLATE_FILE,
)  # fmt: skip
_LONGEST_PATH, _LONGEST_NAME = 4096, 255


@dataclass(frozen=True)
class RopeConfig:
    """One rope kind with all scaling resolved by the builder; tables are ``scale * cos(position * frequency)``."""

    inverse_frequency: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class BuilderLimits:
    """What the engine was built for; a request beyond them is refused."""

    max_batch_size: int
    max_input_len: int
    max_kv_cache_capacity: int

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_batch_size", 1, 64),
            ("max_input_len", 1, 1 << 20),
            ("max_kv_cache_capacity", 2, 1 << 22),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise EngineDirectoryError(f"{name} is {shown(value)}; want a whole number from {low} to {high}.")
        if self.max_input_len > self.max_kv_cache_capacity:
            raise EngineDirectoryError(
                f"max_input_len is {self.max_input_len}, more than max_kv_cache_capacity "
                f"{self.max_kv_cache_capacity}; a prompt must fit in the cache."
            )


@dataclass(frozen=True)
class EngineConfig:
    """``config.json``."""

    model: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    kv_layers: tuple[tuple[int, int], ...]  # (num_kv_heads, head_dim) of each layer
    kv_cache_dtype: str
    rope: Mapping[str, RopeConfig]
    eos_token_id: tuple[int, ...]  # first is the primary one
    limits: BuilderLimits
    embedding_scale: float = 1.0
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    max_position_embeddings: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)  # family keys kept as they were

    def __post_init__(self) -> None:
        try:
            self._check_numbers()
        except ValueError as error:
            raise EngineDirectoryError(f"{CONFIG_FILE}: {error}.") from None
        if len(self.kv_layers) != self.num_hidden_layers:
            raise EngineDirectoryError(
                f"{CONFIG_FILE}: kv_layer_configs has {len(self.kv_layers)} entries; "
                f"num_hidden_layers is {self.num_hidden_layers}."
            )
        if not self.rope:
            raise EngineDirectoryError(f"{CONFIG_FILE}: rope is empty; want at least one rope kind.")

    def _check_numbers(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            whole_number(name, getattr(self, name), 1)
        whole_number("max_position_embeddings", self.max_position_embeddings, 0, LARGEST_FILE)
        positive_number("embedding_scale", self.embedding_scale)
        for heads, size in self.kv_layers:
            whole_number("num_kv_heads", heads, 1)
            whole_number("head_dim", size, 1)
        for kind, rope in self.rope.items():
            positive_number(f"the scale of rope {kind!r}", rope.scale)
            for frequency in rope.inverse_frequency:
                finite_number(f"a frequency of rope {kind!r}", frequency)
        for token in self.eos_token_id:
            whole_number("eos_token_id", token, 0, self.vocab_size - 1)
        for name in ("pad_token_id", "bos_token_id"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), -1)  # some checkpoints write -1 for none

    def to_json(self) -> dict[str, Any]:
        """The file's content; ``from_json`` reads it back to an equal object."""
        return {
            **self.extra,
            "model": self.model,
            "engine_role": "llm",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "kv_layer_configs": [
                {"num_kv_heads": heads, "head_dim": size, "kv_cache_capacity": self.limits.max_kv_cache_capacity}
                for heads, size in self.kv_layers
            ],
            "kv_cache_dtype": self.kv_cache_dtype,
            "rope": {
                kind: {"inverse_frequency": list(rope.inverse_frequency), "scale": rope.scale}
                for kind, rope in self.rope.items()
            },
            "eos_token_id": list(self.eos_token_id),
            "pad_token_id": self.pad_token_id,
            "bos_token_id": self.bos_token_id,
            "embedding_scale": self.embedding_scale,
            "max_position_embeddings": self.max_position_embeddings,
            "builder_config": {
                "max_batch_size": self.limits.max_batch_size,
                "max_input_len": self.limits.max_input_len,
                "max_kv_cache_capacity": self.limits.max_kv_cache_capacity,
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EngineConfig:
        """:raises EngineDirectoryError: a key is missing or of the wrong kind; the sentence names it."""
        known = {
            "model", "engine_role", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
            "kv_layer_configs", "kv_cache_dtype", "rope", "eos_token_id", "pad_token_id", "bos_token_id",
            "embedding_scale", "max_position_embeddings", "builder_config",
        }  # fmt: skip
        try:
            limits = content["builder_config"]
            return cls(
                model=plain_text(content["model"]),
                vocab_size=content["vocab_size"],
                hidden_size=content["hidden_size"],
                num_hidden_layers=content["num_hidden_layers"],
                num_attention_heads=content["num_attention_heads"],
                kv_layers=tuple((row["num_kv_heads"], row["head_dim"]) for row in content["kv_layer_configs"]),
                kv_cache_dtype=str(content["kv_cache_dtype"]),
                rope={
                    str(kind): RopeConfig(tuple(row["inverse_frequency"]), row["scale"])
                    for kind, row in content["rope"].items()
                },
                eos_token_id=tuple(content["eos_token_id"]),
                limits=BuilderLimits(
                    limits["max_batch_size"], limits["max_input_len"], limits["max_kv_cache_capacity"]
                ),
                embedding_scale=content.get("embedding_scale", 1.0),
                pad_token_id=content.get("pad_token_id"),
                bos_token_id=content.get("bos_token_id"),
                max_position_embeddings=content.get("max_position_embeddings", 0),
                extra={key: value for key, value in content.items() if key not in known},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineDirectoryError(
                f"{CONFIG_FILE} {problem_of(error)}; build the engine directory again."
            ) from None


@dataclass(frozen=True)
class EngineDirectory:
    """A directory that passed every check which needs no engine library."""

    path: Path
    config: EngineConfig
    manifest: Manifest


def check_answers(directory: EngineDirectory) -> None:
    """:raises EngineDirectoryError: it holds a policy alone, which has no language model to answer with."""
    acts = (directory.path / ACTION_DIRECTORY).is_dir()
    if acts and not any((directory.path / name).is_file() for name in (GRAPH_FILE, PLAN_FILE)):
        raise EngineDirectoryError(
            f"{directory.path} holds a policy whose language model answers nothing; want one that does, or "
            "use 'edgellm act'."
        )


def open_engine_directory(path: Path | str) -> EngineDirectory:
    """Read and check an engine directory: version, keys, and that every listed file is there at its full size.

    :raises EngineDirectoryError: one sentence with the file, what was found and what was wanted.
    """
    path = Path(path)
    want = "want an engine directory: make one with 'edgellm build'."
    if "\0" in str(path) or len(str(path)) > _LONGEST_PATH:
        raise EngineDirectoryError(f"{shown(str(path))} is no path; {want}")
    try:
        if not path.is_dir():
            found = "a file" if path.exists() else "nothing"
            raise EngineDirectoryError(f"{path} holds {found}; {want}")
        if not (path / MANIFEST_FILE).is_file():
            raise EngineDirectoryError(f"{path} has no {MANIFEST_FILE}; {want}")
        manifest = Manifest.from_json(read_json(path / MANIFEST_FILE))
        for name, size in manifest.files.items():
            _check_file(path, name, size, manifest.samples.get(name))
        for name in _FILES:  # also those that the manifest leaves out
            if (path / name).exists() and not (path / name).is_file():
                raise EngineDirectoryError(f"{path / name} is not a regular file; build the engine directory again.")
    except OSError as error:
        raise EngineDirectoryError(f"{shown(str(path))} cannot be read ({error.strerror}); {want}") from None
    return EngineDirectory(path, EngineConfig.from_json(read_json(path / CONFIG_FILE)), manifest)


def _check_file(path: Path, name: str, size: int, sample: str | None) -> None:
    if not name or len(name) > _LONGEST_NAME or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise EngineDirectoryError(f"{MANIFEST_FILE} lists {shown(name)}; want names inside the engine directory.")
    file = path / name
    if not file.is_file():
        raise EngineDirectoryError(f"{file} is missing; build the engine directory again.")
    check_content(file, size, sample)
