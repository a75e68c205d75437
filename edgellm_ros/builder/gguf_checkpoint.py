"""A GGUF file seen as a Hugging Face checkpoint: names, configuration, and llama.cpp's row order undone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .gguf_file import GGUFFile
from .gguf_tokenizer import write_tokenizer_files
from .gguf_types import split_q8_0

# names of general.architecture -> (architecture, model_type) in Hugging Face terms
ARCHITECTURES = {"llama": ("LlamaForCausalLM", "llama")}

ROPE_FACTORS = "rope_freqs.weight"  # llama 3's frequency factors, stored as a tensor

_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_ROTATED = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(weight|bias)")


def huggingface_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name this table lacks stays, so that the family reports it."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    found = _LAYER_NAME.fullmatch(name)
    if found and found.group(2) in _LAYER_NAMES:
        return f"model.layers.{int(found.group(1))}.{_LAYER_NAMES[found.group(2)]}.{found.group(3)}"
    return name


class GGUFCheckpoint:
    """See the module; :raises CheckpointError: damaged, of an unknown architecture, or a key is missing."""

    def __init__(self, path: Path) -> None:
        self._gguf = GGUFFile(path)
        try:
            self._metadata = self._gguf.metadata
            self._architecture = self._text("general.architecture", "")
            if self._architecture not in ARCHITECTURES:
                raise CheckpointError(
                    f"{path} has the architecture {self._architecture!r}; want one of {', '.join(ARCHITECTURES)}."
                )
            self._names = {huggingface_name(name): name for name in self._gguf.entries if name != ROPE_FACTORS}
            self.config: Mapping[str, Any] = self._read_config()
        except BaseException:
            self._gguf.close()
            raise
        self.shapes = {name: self._gguf.entries[stored].shape for name, stored in self._names.items()}
        self.eos_token_ids = tuple(
            dict.fromkeys(
                token
                for key in ("eos_token_id", "eot_token_id", "eom_token_id")
                if (token := self._number(f"tokenizer.ggml.{key}", -1)) >= 0
            )
        )

    @property
    def source(self) -> str:
        """The model's name from the metadata, and the file's name."""
        return f"{self._text('general.name', 'unnamed model')} ({self._gguf.file.path.name})"

    @property
    def licence(self) -> str:
        """From the metadata, else ``unknown``."""
        return self._text("general.license", "unknown")

    @property
    def weight_bytes(self) -> int:
        """Size of the file."""
        return self._gguf.file.size

    def _fail(self, key: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._gguf.file.path}: {key} is {value!r}; want {wanted}: fetch the file again.")

    def _text(self, key: str, default: str) -> str:
        value = self._metadata.get(key, default)
        if not isinstance(value, str):
            raise self._fail(key, value, "text")
        return value

    def _number(self, key: str, default: int | None = None) -> int:
        value = self._metadata.get(key, default)
        if type(value) is not int:
            raise self._fail(key, value, "a whole number")
        return value

    def _real(self, key: str, default: float | None = None) -> float:
        value = self._metadata.get(key, default)
        if type(value) not in (int, float):
            raise self._fail(key, value, "a number")
        return float(str(np.float32(value)))  # 1e-05 and not 9.999999747378752e-06: the number before it was float32

    def _read_config(self) -> dict[str, Any]:
        prefix = self._architecture + "."
        hidden_size = self._number(prefix + "embedding_length")
        heads = self._number(prefix + "attention.head_count")
        if heads < 1:
            raise self._fail(prefix + "attention.head_count", heads, "a positive number")
        head_dim = self._number(prefix + "attention.key_length", hidden_size // heads)
        rotated = self._number(prefix + "rope.dimension_count", head_dim)
        if rotated != head_dim:
            raise self._fail(prefix + "rope.dimension_count", rotated, f"the head size {head_dim}")
        embedding = self._gguf.entries.get("token_embd.weight")
        if embedding is None:
            raise CheckpointError(f"{self._gguf.file.path} lacks tensor 'token_embd.weight'; fetch the file again.")
        name, model_type = ARCHITECTURES[self._architecture]
        config: dict[str, Any] = {
            "architectures": [name],
            "model_type": model_type,
            "vocab_size": embedding.shape[0],
            "hidden_size": hidden_size,
            "intermediate_size": self._number(prefix + "feed_forward_length"),
            "num_hidden_layers": self._number(prefix + "block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._number(prefix + "attention.head_count_kv", heads),
            "head_dim": head_dim,
            "rms_norm_eps": self._real(prefix + "attention.layer_norm_rms_epsilon"),
            "rope_theta": self._real(prefix + "rope.freq_base", 10000.0),
            "max_position_embeddings": self._number(prefix + "context_length"),
            "tie_word_embeddings": "output.weight" not in self._gguf.entries,
            "rope_scaling": self._rope_scaling(prefix),
        }
        for ours, theirs in (("bos_token_id", "bos_token_id"), ("pad_token_id", "padding_token_id")):
            if f"tokenizer.ggml.{theirs}" in self._metadata:
                config[ours] = self._number(f"tokenizer.ggml.{theirs}")
        return config

    def _rope_scaling(self, prefix: str) -> dict[str, Any] | None:
        if ROPE_FACTORS in self._gguf.entries:
            count = self._gguf.entries[ROPE_FACTORS].shape[0]
            return {
                "rope_type": "frequency_factors",
                "factors": self._gguf.read_rows(ROPE_FACTORS, 0, count).ravel().tolist(),
            }
        kind = self._text(prefix + "rope.scaling.type", "none")
        if kind == "none":
            return None
        scaling: dict[str, Any] = {"rope_type": kind, "factor": self._real(prefix + "rope.scaling.factor")}
        original = prefix + "rope.scaling.original_context_length"
        if original in self._metadata:
            scaling["original_max_position_embeddings"] = self._number(original)
        return scaling

    def _row_order(self, name: str, start: int, stop: int) -> tuple[int, int, np.ndarray | slice]:
        """Rows to read from the file, and where among them each wanted row lies.

        llama.cpp stores the two halves of each query and key head interleaved.
        """
        found = _ROTATED.fullmatch(name) if self._architecture == "llama" else None
        if found is None:
            return start, stop, slice(None)
        head_dim = self.config["head_dim"]
        first = start // head_dim * head_dim
        last = min(-(-stop // head_dim) * head_dim, self.shapes[name][0])
        row = np.arange(start, stop)
        within = row % head_dim
        stored = row - within + within % (head_dim // 2) * 2 + within // (head_dim // 2)
        return first, last, stored - first

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        first, last, order = self._row_order(name, start, stop)
        return self._gguf.read_rows(self._names[name], first, last)[order]

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """See ``Checkpoint.read_int8_blocks``; for tensors of type Q8_0."""
        stored = self._names[name]
        if self._gguf.entries[stored].type.name != "Q8_0":
            return None
        first, last, order = self._row_order(name, start, stop)
        integers, scales = split_q8_0(self._gguf.read_blocks(stored, first, last))
        rows = last - first
        return integers.reshape(rows, -1, 32)[order], scales.reshape(rows, -1)[order]

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.tokenizer_files``; written from the metadata."""
        return write_tokenizer_files(self._metadata, str(self._gguf.file.path))

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``."""
        return self._gguf.file.digest(progress)

    def close(self) -> None:
        """Close the file."""
        self._gguf.close()
