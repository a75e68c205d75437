"""Which tokens of a ``tokenizer.json`` structure a conversation, and the same definition without them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

_OPENING_AND_CLOSING = {"<": ">", "[": "]", "{": "}", "|": "|"}


def control_tokens(added_tokens: Mapping[int, Any]) -> dict[int, str]:
    """Ids and texts of the added tokens that are control tokens.

    Those marked special, and those written like a marker (``<think>``, ``[INST]``). Others, such as runs of spaces,
    are part of ordinary text.
    """
    return {
        token_id: added.content for token_id, added in added_tokens.items() if added.special or _marker(added.content)
    }


def _marker(text: str) -> bool:
    text = text.strip()
    return len(text) > 2 and _OPENING_AND_CLOSING.get(text[0]) == text[-1]


def without_control_tokens(definition: str, removed: Collection[str], *, first: bool) -> str:
    """A tokenizer definition in which no text gives a control token and nothing is added around a text.

    Ids of all other tokens stay. ``first=False`` is for text that follows other text: where a space is put before
    the first word of a text only, it puts none.
    """
    content: dict[str, Any] = json.loads(definition)
    content["added_tokens"] = [token for token in content.get("added_tokens", ()) if token["content"] not in removed]
    for key in ("post_processor", "truncation", "padding"):
        content[key] = None
    _rename(content["model"], removed)
    if not first:
        _no_leading_space(content.get("pre_tokenizer"))
    return json.dumps(content)


def _rename(model: dict[str, Any], removed: Collection[str]) -> None:
    """Give removed entries of the vocabulary a text that does not occur, so that ids keep their places."""
    vocabulary = model.get("vocab")

    def renamed(text: str) -> str:
        return f"\uffff{text}\uffff" if text in removed else text

    if isinstance(vocabulary, list):  # Unigram: [text, score]
        model["vocab"] = [[renamed(text), score] for text, score in vocabulary]
    elif isinstance(vocabulary, dict):
        model["vocab"] = {renamed(text): token for text, token in vocabulary.items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed(model["unk_token"])
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, removed)]


def _touches(merge: Any, removed: Collection[str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in removed or right in removed or left + right in removed


def _no_leading_space(part: Any) -> None:
    if not isinstance(part, dict):
        return
    for nested in part.get("pretokenizers", ()):
        _no_leading_space(nested)
    if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
        part["prepend_scheme"] = "never"
