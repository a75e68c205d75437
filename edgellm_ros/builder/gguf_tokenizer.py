"""tokenizer.json, tokenizer_config.json and chat_template.jinja from the metadata of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..engine_format import CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from ..errors import CheckpointError
from .gguf_metadata import GGUFMetadata
from .pre_tokenizers import PRE_TOKENIZERS
from .tokenizer_check import check_chat_template
from .tokenizer_json import Token, byte_level_tokenizer, merges_of_scores, post_processor, sentencepiece_tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
_LONGEST_PIECE = 256  # characters; each place where one can be cut is looked at

# control tokens that end a turn of a chat whether or not the metadata name them
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")


def end_token_ids(metadata: GGUFMetadata) -> tuple[int, ...]:
    """Every id that ends an answer, the primary one first."""
    keys = [f"tokenizer.ggml.{key}_token_id" for key in ("eos", "eot", "eom")]
    named = [metadata.number(key) for key in keys if metadata.number(key, -1) >= 0]
    tokens, types = metadata.values.get("tokenizer.ggml.tokens"), metadata.values.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        kinds = zip(tokens, types, strict=False)
        named += [number for number, (token, kind) in enumerate(kinds) if kind == _CONTROL and token in _TURN_ENDS]
    return tuple(dict.fromkeys(named))


def _special_token(metadata: GGUFMetadata, key: str, tokens: Sequence[str]) -> Token | None:
    key = f"tokenizer.ggml.{key}_token_id"
    if key not in metadata:
        return None
    number = metadata.number(key)
    if not 0 <= number < len(tokens):
        raise metadata.fail(key, f"an id below {len(tokens)}")
    return number, tokens[number]


def _tokens(metadata: GGUFMetadata) -> tuple[list[str], list[int]]:
    """Tokens and their types. :raises CheckpointError: absent, doubled, or of unequal number."""
    tokens = metadata.items("tokenizer.ggml.tokens", str)
    types = metadata.items("tokenizer.ggml.token_type", int)
    different = len(set(tokens))
    if different != len(tokens) or len(types) != len(tokens):
        raise CheckpointError(
            f"{metadata.path} has {len(tokens)} tokens, {different} different ones, and {len(types)} token types; want "
            "equal numbers: fetch the file again."
        )
    return tokens, types


def _merges(metadata: GGUFMetadata, tokens: Sequence[str]) -> list[list[str]]:
    vocabulary = set(tokens)
    merges = [merge.split(" ") for merge in metadata.items("tokenizer.ggml.merges", str)]
    for merge in merges:
        if len(merge) != 2 or not vocabulary.issuperset((*merge, "".join(merge))):
            raise CheckpointError(f"{metadata.path} has the merge {merge!r} of unknown tokens; fetch the file again.")
    return merges


def _scores(metadata: GGUFMetadata, tokens: Sequence[str]) -> list[float]:
    scores: list[float] = metadata.items("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise metadata.fail("tokenizer.ggml.scores", f"one score for each of {len(tokens)} tokens")
    if any(score != score for score in scores):
        raise CheckpointError(f"{metadata.path}: tokenizer.ggml.scores holds no numbers; fetch the file again.")
    return scores


def write_tokenizer_files(metadata: GGUFMetadata) -> dict[str, bytes]:
    """Content of the tokenizer's files by name.

    :raises CheckpointError: no vocabulary, or one of a kind that this builder does not write; the file is named.
    """
    kind = metadata.text("tokenizer.ggml.model", "")
    pre = metadata.text("tokenizer.ggml.pre", "default")
    if kind not in (BYTE_LEVEL, SENTENCEPIECE):
        raise CheckpointError(
            f"{metadata.path} has a tokenizer of the kind {kind!r}; want {BYTE_LEVEL!r} (byte-level) or "
            f"{SENTENCEPIECE!r} (SentencePiece)."
        )
    if kind == BYTE_LEVEL and pre not in PRE_TOKENIZERS:
        raise CheckpointError(f"{metadata.path} splits text as {pre!r}; want one of {', '.join(PRE_TOKENIZERS)}.")
    tokens, types = _tokens(metadata)
    way = PRE_TOKENIZERS[pre] if kind == BYTE_LEVEL else None
    add_bos = metadata.switch("tokenizer.ggml.add_bos_token", way.add_bos if way else True)
    add_eos = metadata.switch("tokenizer.ggml.add_eos_token", False)
    names = {
        name: _special_token(metadata, key, tokens)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    special = {
        number: kind != _USER_DEFINED
        for number, kind in enumerate(types)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and tokens[number]
    }
    around = post_processor(names["bos"] if add_bos else None, names["eos"] if add_eos else None)
    if way is not None:
        content = byte_level_tokenizer(
            tokens, _merges(metadata, tokens), way.patterns,
            ignore_merges=way.ignore_merges, special=special, post_processor=around,
        )  # fmt: skip
    else:
        longest = max(map(len, tokens), default=0)
        if longest > _LONGEST_PIECE:
            raise CheckpointError(
                f"{metadata.path} has a token of {longest} characters; want at most {_LONGEST_PIECE}: fetch the "
                "file again."
            )
        ordinary = [number for number, kind in enumerate(types) if kind in (_NORMAL, _UNUSED)]
        content = sentencepiece_tokenizer(
            tokens,
            merges_of_scores(tokens, _scores(metadata, tokens), ordinary),
            unknown=names["unk"][1] if names["unk"] else None,
            add_space_prefix=metadata.switch("tokenizer.ggml.add_space_prefix", True),
            special=special,
            post_processor=around,
        )
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "add_eos_token": add_eos,
        "clean_up_tokenization_spaces": False,
    }
    settings.update({f"{name}_token": token[1] for name, token in names.items() if token})
    files = {TOKENIZER_FILE: _dump(content), TOKENIZER_CONFIG_FILE: _dump(settings)}
    template = metadata.text("tokenizer.chat_template", "")
    if template:
        place = f"{metadata.path} (tokenizer.chat_template)"
        files[CHAT_TEMPLATE_FILE] = check_chat_template(template.encode(), place)
    return files


def _dump(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
