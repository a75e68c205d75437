"""tokenizer.json, tokenizer_config.json and chat_template.jinja from the metadata of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..engine_format import CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from ..errors import CheckpointError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS_FIRST = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _LETTERS_FIRST.format(digits="{1,3}")
_QWEN2 = _LETTERS_FIRST.format(digits="")
_SINGLE_DIGITS = r"\p{N}"

# tokenizer.ggml.pre -> (patterns, each splitting the pieces of the one before; whether whole words skip the merges)
PRE_TOKENIZERS: dict[str, tuple[tuple[str, ...], bool]] = {
    "gpt-2": ((_GPT2,), False),
    "smollm": ((_SINGLE_DIGITS, _GPT2), False),
    "starcoder": ((_SINGLE_DIGITS, _GPT2), False),
    "llama-bpe": ((_LLAMA3,), True),
    "llama3": ((_LLAMA3,), True),
    "qwen2": ((_QWEN2,), False),
}


def _list(metadata: Mapping[str, Any], key: str, kind: type, path: str) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        found = "absent" if value is None else "of another kind"
        raise CheckpointError(f"{path}: {key} is {found}; want a list of {kind.__name__}: fetch the file again.")
    return value


def _added_token(number: int, content: str, special: bool) -> dict[str, Any]:
    return {
        "id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": special,
    }  # fmt: skip


def _special_token(metadata: Mapping[str, Any], key: str, tokens: list[str], path: str) -> tuple[int, str] | None:
    number = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if number is None:
        return None
    if type(number) is not int or not 0 <= number < len(tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.{key}_token_id is {number!r}; want an id below {len(tokens)}.")
    return number, tokens[number]


def _post_processor(bos: tuple[int, str] | None, eos: tuple[int, str] | None) -> dict[str, Any] | None:
    """Adds the tokens to single texts and to each text of a pair; None: adds nothing."""
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in filter(None, (bos, eos))}
    if not special:
        return None

    def template(sequence: str, type_id: int) -> list[dict[str, Any]]:
        before = [{"SpecialToken": {"id": bos[1], "type_id": type_id}}] if bos else []
        after = [{"SpecialToken": {"id": eos[1], "type_id": type_id}}] if eos else []
        return [*before, {"Sequence": {"id": sequence, "type_id": type_id}}, *after]

    return {
        "type": "TemplateProcessing",
        "single": template("A", 0),
        "pair": template("A", 0) + template("B", 1),
        "special_tokens": special,
    }


def byte_level_tokenizer(
    tokens: list[str],
    merges: list[list[str]],
    patterns: tuple[str, ...],
    *,
    ignore_merges: bool = False,
    special: Mapping[int, bool] | None = None,
    post_processor: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Content of a ``tokenizer.json`` for byte-level byte-pair encoding.

    ``tokens`` in the order of their ids, ``merges`` as pairs, ``patterns`` split the text one after another,
    ``special`` maps ids that are matched whole in a text to whether they are control tokens.
    """
    special = special or {}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(number, tokens[number], special[number]) for number in sorted(special)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": post_processor,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }  # fmt: skip


def write_tokenizer_files(metadata: Mapping[str, Any], path: str) -> dict[str, bytes]:
    """Content of the tokenizer's files by name.

    :raises CheckpointError: no vocabulary, or one of a kind that this builder does not write; ``path`` is named.
    """
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise CheckpointError(f"{path} has a tokenizer of the kind {kind!r}; want 'gpt2' (byte-level).")
    if pre not in PRE_TOKENIZERS:
        raise CheckpointError(f"{path} splits text as {pre!r}; want one of {', '.join(PRE_TOKENIZERS)}.")
    tokens = _list(metadata, "tokenizer.ggml.tokens", str, path)
    types = _list(metadata, "tokenizer.ggml.token_type", int, path)
    merges = [merge.split(" ") for merge in _list(metadata, "tokenizer.ggml.merges", str, path)]
    vocabulary = set(tokens)
    if len(vocabulary) != len(tokens) or len(types) != len(tokens):
        raise CheckpointError(
            f"{path} has {len(tokens)} tokens, {len(vocabulary)} different ones, and {len(types)} token types; want "
            "equal numbers: fetch the file again."
        )
    for merge in merges:
        if len(merge) != 2 or not vocabulary.issuperset((*merge, "".join(merge))):
            raise CheckpointError(f"{path} has the merge {merge!r} of unknown tokens; fetch the file again.")
    patterns, ignore_merges = PRE_TOKENIZERS[pre]
    names = {
        name: _special_token(metadata, key, tokens, path)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False))
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    content = byte_level_tokenizer(
        tokens,
        merges,
        patterns,
        ignore_merges=ignore_merges,
        special={
            number: kind != _USER_DEFINED
            for number, kind in enumerate(types)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        },
        post_processor=_post_processor(names["bos"] if add_bos else None, names["eos"] if add_eos else None),
    )
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "add_eos_token": add_eos,
        "clean_up_tokenization_spaces": False,
    }
    settings.update({f"{name}_token": token[1] for name, token in names.items() if token})
    files = {TOKENIZER_FILE: _dump(content), TOKENIZER_CONFIG_FILE: _dump(settings)}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files[CHAT_TEMPLATE_FILE] = template.encode()
    return files


def _dump(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
