"""Tokenizers that load and then fail on a text: a request ends in a sentence, whatever the library raises."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers_for_tests import CHATML, CHATML_TOKENS, byte_level

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.chat_template import ChatTemplate
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.errors import CheckpointError, EngineDirectoryError, RequestError
from edgellm_ros.runtime.request import Message
from edgellm_ros.runtime.tokenizer import Tokenizer

CONTROL = "<|im_end|>"
WORDS = {"vocab": {"a": 0}, "unk_token": "zzz"}
PARTS: dict[str, dict[str, Any]] = {
    "no unknown token": {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}},
    "unknown token is unknown": {"model": {"type": "WordLevel", **WORDS}},
    "no token for pieces": {
        "model": {"type": "WordPiece", "continuing_subword_prefix": "", "max_input_chars_per_word": 0, **WORDS}
    },
    "panics": {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "xx"}},
    "all text is a control token": {"normalizer": {"type": "Replace", "pattern": {"Regex": ".+"}, "content": CONTROL}},
}
PANICS = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RUST_BACKTRACE", "0")


def changed(parts: dict[str, Any]) -> str:
    return json.dumps({**json.loads(byte_level(CHATML_TOKENS, normalized=True)), **parts})


@pytest.mark.parametrize("template", [CHATML, None], ids=["template", "plain"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_text_that_the_library_fails_on_is_a_sentence(parts: dict[str, Any], template: str | None) -> None:
    tokenizer = Tokenizer(changed(parts), {}, ChatTemplate(template, {}) if template else None)
    calls: list[Callable[[], Any]] = [
        lambda: tokenizer.encode("hi there", allow_control=False),
        lambda: tokenizer.encode_conversation([Message("user", "hi there")], apply_chat_template=template is not None),
    ]
    for call in calls:
        with pytest.raises(RequestError, match=r"^tokenizer.json .*; build the engine directory again") as caught:
            call()
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_a_panic_while_loading_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(EngineDirectoryError, match=r"tokenizer\.json is no tokenizer that can be loaded"):
        Tokenizer(changed({"normalizer": PANICS}))
    folder = write_random_llama_checkpoint(tmp_path / "checkpoint")
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**content, "normalizer": PANICS}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is no tokenizer that can be loaded"):
        build_engine(folder, tmp_path / "engine", limits=BuilderLimits(1, 8, 16))


def test_a_text_for_the_calibration_that_the_library_fails_on_is_a_sentence(tmp_path: Path) -> None:
    folder = write_random_llama_checkpoint(tmp_path / "checkpoint")
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**content, **PARTS["no unknown token"]}))
    with pytest.raises(CheckpointError, match=r"fails on a text in English .*; build with --no-calibration"):
        build_engine(folder, tmp_path / "engine", precision="int8", limits=BuilderLimits(1, 8, 16))
