"""The content of ``tokenizer.json`` for the two kinds of vocabulary that GGUF files have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SPACE = "▁"  # how SentencePiece writes a blank

Token = tuple[int, str]


def _added_token(number: int, content: str, special: bool) -> dict[str, Any]:
    return {
        "id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": special,
    }  # fmt: skip


def post_processor(bos: Token | None, eos: Token | None) -> dict[str, Any] | None:
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


def _content(tokens: Sequence[str], special: Mapping[int, bool], model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(number, tokens[number], special[number]) for number in sorted(special)],
        **parts,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            **model,
        },
    }  # fmt: skip


def byte_level_tokenizer(
    tokens: Sequence[str],
    merges: Sequence[Sequence[str]],
    patterns: Sequence[str],
    *,
    ignore_merges: bool = False,
    special: Mapping[int, bool] | None = None,
    post_processor: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Byte-level byte-pair encoding.

    ``tokens`` in the order of their ids, ``merges`` as pairs, ``patterns`` split the text one after another,
    ``special`` maps ids that are matched whole in a text to whether they are control tokens.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return _content(
        tokens,
        special or {},
        {"ignore_merges": ignore_merges, "merges": merges},
        normalizer=None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        post_processor=post_processor,
        decoder=byte_level,
    )


def merges_of_scores(tokens: Sequence[str], scores: Sequence[float], ids: Sequence[int]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies: whatever two of its tokens give a third, best score first.

    ``ids`` are those that take part.
    """
    members = {tokens[number] for number in ids}

    def halves(token: str) -> Iterator[tuple[str, str]]:
        for cut in range(1, len(token)):
            if token[:cut] in members and token[cut:] in members:
                yield token[:cut], token[cut:]

    order = sorted(ids, key=lambda number: (-scores[number], number))
    return [pair for number in order for pair in halves(tokens[number])]


def sentencepiece_tokenizer(
    tokens: Sequence[str],
    merges: Sequence[Sequence[str]],
    *,
    unknown: str | None,
    add_space_prefix: bool,
    special: Mapping[int, bool] | None = None,
    post_processor: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Byte-pair encoding over characters, as SentencePiece does it: blanks are part of the tokens, and a character
    without a token falls back to its bytes. ``add_space_prefix`` puts a blank before each text, and after each token
    that is matched whole.
    """
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = [{"type": "Prepend", "prepend": SPACE}] if add_space_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if add_space_prefix else []
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *strip,
    ]
    return _content(
        tokens,
        special or {},
        {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True, "merges": merges},
        normalizer={"type": "Sequence", "normalizers": [*prefix, escape]},
        pre_tokenizer=None,
        post_processor=post_processor,
        decoder={"type": "Sequence", "decoders": decoders},
    )
