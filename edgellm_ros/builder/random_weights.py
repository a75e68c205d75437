"""Checkpoints of any shape with seeded random weights, for tests and for measuring speed without a download."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..engine_format import CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from ..errors import CheckpointError
from ..json_values import is_file, is_folder
from .elements import SAFETENSORS_NAMES, encode
from .families import read_config
from .families.decoder import decoder_tensors
from .families.text_part import text_configuration
from .huggingface_checkpoint import (
    CONFIG,
    INDEX_FILE,
    PROCESSOR_FILES,
    SINGLE_FILE,
    read_bytes,
    read_json_object,
    token_ids,
)
from .pre_tokenizers import PRE_TOKENIZERS
from .random_rows import check_seed, random_rows
from .random_vision import image_template, image_tokens
from .tokenizer_json import byte_level_tokenizer
from .vision_families import read_tower
from .weights import BAND_BYTES

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tiny_tokenizer_files(
    vocab_size: int, control: Mapping[int, str] | None = None, template: str = CHAT_TEMPLATE
) -> dict[str, bytes]:
    """A byte-level tokenizer: ids 0 to 2 control tokens, then the 256 bytes, then pairs that only decode.

    ``control`` has further control tokens, by ids beyond the bytes.

    :raises CheckpointError: ``vocab_size`` is too small for that, or too large for pairs of bytes.
    """
    if not SMALLEST_VOCABULARY <= vocab_size <= SMALLEST_VOCABULARY + 256**3:
        raise CheckpointError(f"vocab_size is {vocab_size}; want at least {SMALLEST_VOCABULARY} for byte tokens.")
    characters = byte_characters()
    tokens = [*SPECIAL_TOKENS, *characters]
    for number in range(vocab_size - len(tokens)):
        high, low = divmod(number, 256)
        prefix = characters[high // 256] if high >= 256 else ""
        tokens.append(prefix + characters[high % 256] + characters[low])
    special = dict.fromkeys(range(len(SPECIAL_TOKENS)), True)
    for token, text in (control or {}).items():
        if token >= SMALLEST_VOCABULARY:
            tokens[token], special[token] = text, True
    content = byte_level_tokenizer(tokens, [], PRE_TOKENIZERS["gpt-2"].patterns, special=special)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL_TOKENS[1], "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[0], "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    return {
        TOKENIZER_FILE: json.dumps(content, ensure_ascii=False).encode(),
        TOKENIZER_CONFIG_FILE: json.dumps(settings).encode(),
        CHAT_TEMPLATE_FILE: template.encode(),
    }


class RandomCheckpoint:
    """A ``Checkpoint`` of a configuration without files: equal seeds give equal weights, read in any bands.

    Matrices are normal with standard deviation 1/sqrt(columns), norms near 1, biases near 0. ``files`` are those of an
    image processor, by name.

    :raises CheckpointError: no family builds the configuration, or a seed that is no whole number from 0 on.
    """

    def __init__(self, config: Mapping[str, Any], seed: int = 0, files: Mapping[str, bytes] | None = None) -> None:
        self._seed = check_seed(seed)
        self.config = dict(config)
        decoder = read_config(config)
        tower = read_tower(config)
        self.shapes = {**decoder_tensors(decoder), **({} if tower is None else tower.tensors())}
        self._vocab_size = decoder.vocab_size
        self._has_tower = tower is not None
        self._files = dict(files or {})
        self.source = f"random weights of seed {seed}, shape of {decoder.name}"
        self._norm = 1 - decoder.norm_offset

    licence = "none"
    weight_bytes = 0

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """See ``Checkpoint.eos_token_ids``."""
        return token_ids(text_configuration(self.config).get("eos_token_id"), CONFIG)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        shape = self.shapes[name]
        values = random_rows(self._seed, name, shape, start, stop)
        if len(shape) == 1 and name.startswith("visual."):
            scale = name.endswith(".weight") or ".ls" in name or "lambda" in name
            return np.float32(scale) + np.float32(0.1) * values
        if len(shape) == 1:
            return np.float32(self._norm) + np.float32(0.1) * values if "norm" in name else np.float32(0.1) * values
        return values * np.float32(math.prod(shape[1:]) ** -0.5)

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Never."""
        return None

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.tokenizer_files``."""
        if not self._has_tower:
            return tiny_tokenizer_files(self._vocab_size)
        return tiny_tokenizer_files(
            self._vocab_size, image_tokens(self.config, self._vocab_size), image_template(self.config)
        )

    def processor_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.processor_files``."""
        return self._files

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``."""
        content = json.dumps([self.config, self._seed], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def close(self) -> None:
        """Nothing to close."""


def open_random_checkpoint(path: Path, seed: int = 0) -> RandomCheckpoint:
    """Random weights for a ``config.json``, or for the one in a folder; image processor files beside it count too.

    :raises CheckpointError: it is missing, damaged, or no family builds it.
    """
    file = path / CONFIG if is_folder(path) else path
    found = {name: file.parent / name for name in PROCESSOR_FILES}
    files = {name: read_bytes(place) for name, place in found.items() if is_file(place)}
    return RandomCheckpoint(read_json_object(file), seed, files)


def _encode(values: np.ndarray, dtype: str) -> bytes:
    """float32 as F32, F16 or BF16, rounded to nearest even."""
    element = next(element for element, name in SAFETENSORS_NAMES.items() if name == dtype)
    return encode(values, element).tobytes()


def write_safetensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str, int, int], np.ndarray], dtype: str = "F32"
) -> None:
    """Write tensors band by band; ``read(name, start, stop)`` gives float32 rows."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    width, end = {"F32": 4, "F16": 2, "BF16": 2}[dtype], 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * width
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            step = max(1, BAND_BYTES // (4 * math.prod(shape[1:])))
            for start in range(0, shape[0], step):
                file.write(_encode(read(name, start, min(start + step, shape[0])), dtype))


def write_random_checkpoint(
    path: Path, config: Mapping[str, Any], *, seed: int = 0, dtype: str = "F32", shards: int = 1
) -> Path:
    """Write a Hugging Face folder of a configuration; ``dtype`` is F32, F16 or BF16. Returns ``path``."""
    checkpoint = RandomCheckpoint(config, seed)
    path.mkdir(parents=True, exist_ok=True)
    (path / CONFIG).write_text(json.dumps(checkpoint.config, indent=1))
    for name, content in checkpoint.tokenizer_files().items():
        (path / name).write_bytes(content)
    names = list(checkpoint.shapes)
    weight_map = {}
    for shard in range(shards):
        file = SINGLE_FILE if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        chosen = {name: checkpoint.shapes[name] for name in names[shard::shards]}
        write_safetensors(path / file, chosen, checkpoint.read_rows, dtype)
        weight_map.update(dict.fromkeys(chosen, file))
    if shards > 1:
        (path / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def write_random_llama_checkpoint(
    path: Path,
    *,
    vocab_size: int = 320,
    hidden_size: int = 48,
    intermediate_size: int = 80,
    num_hidden_layers: int = 2,
    num_attention_heads: int = 4,
    num_key_value_heads: int = 2,
    head_dim: int = 16,
    tie_word_embeddings: bool = True,
    max_position_embeddings: int = 8192,
    seed: int = 0,
    dtype: str = "F32",
    shards: int = 1,
    **settings: Any,
) -> Path:
    """Write a small Llama folder; ``settings`` are further keys of its config.json. Returns ``path``."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "vocab_size": vocab_size, "hidden_size": hidden_size,
        "intermediate_size": intermediate_size, "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads, "num_key_value_heads": num_key_value_heads, "head_dim": head_dim,
        "tie_word_embeddings": tie_word_embeddings, "max_position_embeddings": max_position_embeddings,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **settings,
    }  # fmt: skip
    return write_random_checkpoint(path, config, seed=seed, dtype=dtype, shards=shards)
