"""A Hugging Face folder: config.json, safetensors files (one, or shards under an index) and the tokenizer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..engine_format import CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from ..errors import CheckpointError
from ..json_values import MAX_JSON_BYTES, MAX_OBJECT_BYTES, without_repeats
from .bounded_file import BoundedFile
from .safetensors_file import SafetensorsFile
from .tokenizer_check import check_chat_template

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_HALF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # most come in pairs, and then they are a character


def read_bytes(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """A whole small file.

    :raises CheckpointError: missing, unreadable, or of more than ``most`` bytes.
    """
    file = BoundedFile(path)
    try:
        if file.size > most:
            raise CheckpointError(f"{path} has {file.size} bytes; want at most {most}: fetch it again.")
        return file.read(0, file.size, "the content")
    finally:
        file.close()


def read_json_object(path: Path, most: int = MAX_OBJECT_BYTES) -> dict[str, Any]:
    """A JSON object.

    :raises CheckpointError: missing, not JSON, or not an object; the sentence names the file.
    """
    try:
        text = read_bytes(path, most).decode("utf-8-sig")
        content = json.loads(text, object_pairs_hook=without_repeats)
        if _HALF_A_CHARACTER.search(text):
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch it again.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds {type(content).__name__}; want a JSON object.")
    return content


def token_ids(value: Any, where: str) -> tuple[int, ...]:
    """An eos_token_id entry (absent, a number, a list) as ids without repeats.

    :raises CheckpointError: of another kind.
    """
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int and token >= 0 for token in values):
        raise CheckpointError(f"{where}: eos_token_id is {value!r}; want a token id or a list of them.")
    return tuple(dict.fromkeys(values))


class HuggingFaceCheckpoint:
    """See the module; :raises CheckpointError: a file is missing, damaged, or contradicts another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] = read_json_object(path / CONFIG)
        generation = read_json_object(path / GENERATION_CONFIG) if (path / GENERATION_CONFIG).exists() else {}
        self.eos_token_ids = tuple(
            dict.fromkeys(
                token_ids(self.config.get("eos_token_id"), CONFIG)
                + token_ids(generation.get("eos_token_id"), GENERATION_CONFIG)
            )
        )
        self._files: list[SafetensorsFile] = []
        try:
            self._owner = self._open_weights()
        except BaseException:
            self.close()
            raise
        self.shapes = {name: file.entries[name].shape for name, file in self._owner.items()}

    @property
    def source(self) -> str:
        """The model's published name where the configuration keeps it, and the folder."""
        name = self.config.get("_name_or_path")
        folder = self.path.resolve().name
        return f"{name} ({folder})" if isinstance(name, str) and name and name != folder else folder

    @property
    def licence(self) -> str:
        """From the front matter of the model card, else ``unknown``."""
        try:
            front = read_bytes(self.path / "README.md").decode("utf-8", "replace").split("---", 2)
        except CheckpointError:
            return "unknown"
        found = re.search(r"^license:\s*[\"']?([^\s\"'#]+)", front[1], re.MULTILINE) if len(front) == 3 else None
        return found.group(1) if found else "unknown"

    @property
    def weight_bytes(self) -> int:
        """Size of all weight files."""
        return sum(file.file.size for file in self._files)

    def _open(self, name: str) -> SafetensorsFile:
        file = SafetensorsFile(self.path / name)
        self._files.append(file)
        return file

    def _open_weights(self) -> dict[str, SafetensorsFile]:
        if (self.path / INDEX_FILE).exists():
            return self._open_shards(read_json_object(self.path / INDEX_FILE).get("weight_map"))
        if (self.path / SINGLE_FILE).exists():
            file = self._open(SINGLE_FILE)
            return dict.fromkeys(file.entries, file)
        found = "only PyTorch files" if list(self.path.glob("*.bin")) else "no weights"
        raise CheckpointError(
            f"{self.path} holds {found}; want {SINGLE_FILE} or {INDEX_FILE}: save it with safe_serialization."
        )

    def _open_shards(self, weight_map: Any) -> dict[str, SafetensorsFile]:
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{self.path / INDEX_FILE} has no weight_map; fetch it again.")
        shards: dict[str, SafetensorsFile] = {}
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
                raise CheckpointError(
                    f"{self.path / INDEX_FILE} places tensor {name!r} in {shard!r}; want a plain file name."
                )
            if shard not in shards:
                shards[shard] = self._open(shard)
            if name not in shards[shard].entries:
                raise CheckpointError(f"{self.path / shard} lacks tensor {name!r} that {INDEX_FILE} places there.")
        for shard, file in shards.items():
            for name in file.entries:
                if weight_map.get(name) != shard:
                    raise CheckpointError(f"{self.path / shard} holds tensor {name!r} that {INDEX_FILE} lacks there.")
        return {name: shards[shard] for name, shard in weight_map.items()}

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        return self._owner[name].read_rows(name, start, stop)

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Never: these files hold float weights."""
        return None

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.tokenizer_files``; a template inside the tokenizer configuration becomes its own file."""
        if not (self.path / TOKENIZER_FILE).exists():
            raise CheckpointError(
                f"{self.path} has no {TOKENIZER_FILE}; want a fast tokenizer: save it with transformers."
            )
        read_json_object(self.path / TOKENIZER_FILE, MAX_JSON_BYTES)
        files = {TOKENIZER_FILE: read_bytes(self.path / TOKENIZER_FILE)}
        template: str | None = None
        place = self.path / TOKENIZER_CONFIG_FILE
        if place.exists():
            template = _default_template(read_json_object(place).get("chat_template"))
            files[TOKENIZER_CONFIG_FILE] = read_bytes(place)
        if (self.path / "chat_template.json").exists():
            place = self.path / "chat_template.json"
            template = _default_template(read_json_object(place).get("chat_template"))
        content = None if template is None else template.encode()
        if (self.path / CHAT_TEMPLATE_FILE).exists():
            place = self.path / CHAT_TEMPLATE_FILE
            content = read_bytes(place)
        if content is not None:
            files[CHAT_TEMPLATE_FILE] = check_chat_template(content, str(place))
        return files

    def processor_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.processor_files``."""
        return {name: read_bytes(self.path / name) for name in PROCESSOR_FILES if (self.path / name).is_file()}

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``."""
        checksum = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        checksum.update(json.dumps(self.eos_token_ids).encode())
        for name, content in sorted({**self.tokenizer_files(), **self.processor_files()}.items()):
            checksum.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
        for file in sorted(self._files, key=lambda file: file.file.path.name):
            checksum.update(file.file.path.name.encode() + b"\0" + file.file.digest(progress).encode())
        return checksum.hexdigest()

    def close(self) -> None:
        """Close all files."""
        for file in self._files:
            file.close()


def _default_template(value: Any) -> str | None:
    """A chat template that is text, or the one named ``default`` of a list."""
    if isinstance(value, list):
        named = {row.get("name"): row.get("template") for row in value if isinstance(row, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
