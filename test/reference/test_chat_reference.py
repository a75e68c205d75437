"""Chat templates and ids of conversations equal those of transformers on the SmolLM2 vocabulary."""

from __future__ import annotations

from contextlib import closing

import pytest
from reference_files import read

from benchmarks.peers.gguf_llama import smollm2_gguf
from edgellm_ros.builder.checkpoint import open_checkpoint
from edgellm_ros.runtime.request import Message, SpecialTokenPolicy
from edgellm_ros.runtime.tokenizer import Tokenizer

CONVERSATIONS = read("smollm2_chat.json")["conversations"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2_tokenizer")
    with closing(open_checkpoint(smollm2_gguf())) as checkpoint:
        for name, content in checkpoint.tokenizer_files().items():
            (folder / name).write_bytes(content)
    return Tokenizer.from_directory(folder)


def named(conversation: dict) -> str:
    return conversation["name"] + (", to be answered" if conversation["add_generation_prompt"] else "")


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=named)
def test_text_and_ids_equal_those_of_transformers(tokenizer, conversation):
    messages = [Message(**message) for message in conversation["messages"]]
    encoded = tokenizer.encode_conversation(
        messages,
        add_generation_prompt=conversation["add_generation_prompt"],
        special_tokens=SpecialTokenPolicy.ALLOW,
    )
    assert encoded.text == conversation["text"]
    assert encoded.token_ids == conversation["ids"]


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=named)
def test_text_is_literal_by_default_and_differs_only_where_it_names_control_tokens(tokenizer, conversation):
    messages = [Message(**message) for message in conversation["messages"]]
    encoded = tokenizer.encode_conversation(messages, add_generation_prompt=conversation["add_generation_prompt"])
    assert encoded.text == conversation["text"]
    assert (encoded.token_ids == conversation["ids"]) == (conversation["name"] != "control tokens in user text")


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=named)
def test_pieces_joined_are_the_text(tokenizer, conversation):
    pieces = [tokenizer.token_bytes(token, False) for token in conversation["ids"]]
    assert b"".join(pieces).decode() == conversation["text"]
