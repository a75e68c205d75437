"""A tokenizer for models that have none: one token for each byte, and control tokens at the ids of a configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..engine_format import CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_letters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (the table of GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


def _control_ids(vocab_size: int, eos: Sequence[int], bos: int | None, pad: int | None) -> dict[str, int]:
    """Control tokens at the ids of the configuration, those it lacks behind the bytes or at the end."""
    wanted = [(TURN_END, eos[0] if eos else None), ("<|bos|>", bos), ("<|pad|>", pad)]
    wanted += [(f"<|end_{token}|>", token) for token in eos[1:]]
    control: dict[str, int] = {}
    for name, token in wanted:
        if token is not None and token < vocab_size and token not in control.values():
            control[name] = token
    for name in (TURN_END, TURN_START):
        taken = set(control.values())
        free = [token for token in range(vocab_size) if token not in taken]
        if name not in control and free:
            control[name] = next((token for token in free if token >= 256), free[-1])
    return control


def _byte_ids(vocab_size: int, control: Mapping[str, int]) -> dict[str, int]:
    """Bytes at the lowest free ids, in their order, or plain text first where not all of them fit."""
    taken = set(control.values())
    free = [token for token in range(min(vocab_size, 256 + len(taken))) if token not in taken]
    text = [0x0A, *range(0x20, 0x7F)]
    order = list(range(256)) if len(free) >= 256 else [*text, *(byte for byte in range(256) if byte not in text)]
    letters = byte_letters()
    return {letters[byte]: token for byte, token in zip(order, free, strict=False)}


def byte_tokenizer_files(
    vocab_size: int, *, eos: Sequence[int] = (), bos: int | None = None, pad: int | None = None
) -> dict[str, bytes]:
    """Content of ``tokenizer.json`` and its companions, by file name; ids behind the bytes stay unused."""
    control = _control_ids(vocab_size, eos, bos, pad)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [
            {"id": token, "content": name, **flags} for name, token in sorted(control.items(), key=lambda row: row[1])
        ],
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {**_byte_ids(vocab_size, control), **control}, "merges": [],
        },
    }  # fmt: skip
    names = {token: name for name, token in control.items()}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names.get(bos) if bos is not None else None,
        "eos_token": TURN_END,
        "pad_token": names.get(pad) if pad is not None else None,
        "clean_up_tokenization_spaces": False,
    }
    return {
        TOKENIZER_FILE: json.dumps(tokenizer, ensure_ascii=False).encode(),
        TOKENIZER_CONFIG_FILE: json.dumps(settings).encode(),
        CHAT_TEMPLATE_FILE: CHAT_TEMPLATE.encode(),
    }
