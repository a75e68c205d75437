"""Whatever is drawn from what a guide allows, the text that comes out has its form, for every kind of vocabulary."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tokenizers_for_tests import CASES

from benchmarks.peers.gguf_llama import smollm2_gguf
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.answer_text import AnswerReader, AnswerRules, split_pieces
from edgellm_ros.runtime.guide_grammar import Guide
from edgellm_ros.runtime.guided import GuideCompiler
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.reasoning import ReasoningRules, ReasoningState
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
)
from edgellm_ros.runtime.tokenizer import Tokenizer

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"says": {"type": "string", "maxLength": 6}, "ok": {"type": "boolean"}},
    "required": ["says", "ok"],
    "additionalProperties": False,
}
PATTERN = r" ?(the|a) [a-c]{1,3}(, [a-c]){0,2}\."
GUIDES = {
    "schema": (Guide.json_schema(SCHEMA), lambda text: len(json.loads(text)["says"]) <= 6),
    "pattern": (Guide("regex", PATTERN), lambda text: re.fullmatch(PATTERN, text) is not None),
    "choice": (Guide.choice(" left", "dröp it", "世"), (" left", "dröp it", "世").__contains__),
}
TOKENIZERS = {
    name: (Tokenizer(definition), settings)
    for name, (definition, _, settings) in CASES.items()
    if name != "unigram_turns"
}


def end_of(name: str) -> int:
    tokenizer, settings = TOKENIZERS[name]
    end = settings.get("eos_token", "</s>")
    return tokenizer.token_id(end["content"] if isinstance(end, dict) else end)


@pytest.mark.parametrize("kind", GUIDES)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_walk_through_what_is_allowed_has_the_form(name, kind):
    tokenizer, end = TOKENIZERS[name][0], end_of(name)
    guide, valid = GUIDES[kind]
    rules = ReasoningRules(tokenizer, [end])
    compiler = GuideCompiler(tokenizer, tokenizer.vocab_size, (end,), rules)
    for seed in range(6):
        random = np.random.default_rng(seed)
        sequence = compiler.start(guide, (), False)
        token_ids: list[int] = []
        while not token_ids or token_ids[-1] != end:
            mask = sequence.take_mask()
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=tokenizer.vocab_size, bitorder="little"))
            assert not any(tokenizer.is_control(token) for token in allowed if token != end)
            token = end if end in allowed and random.random() < 0.5 else int(random.choice(allowed))
            assert sequence.accept(token)
            token_ids.append(token)
            assert len(token_ids) < 200
        reader = AnswerReader(AnswerRules(rules, ReasoningState.ANSWER, guided=True), tokenizer, True)
        text, _, _ = split_pieces([piece for token in token_ids for piece in reader.feed(token)] + reader.finish())
        assert valid(text), text


@pytest.mark.slow
def test_a_real_model_keeps_to_a_schema(tmp_path):
    build_engine(
        smollm2_gguf(), tmp_path / "engine", precision="int8", limits=BuilderLimits(4, 256, 512), calibrate=False
    )
    with LLMInferenceRuntime(tmp_path / "engine") as runtime:
        items = [
            Request(
                (Message("user", "Describe a robot."),), guided_decoding=Guide.json_schema(SCHEMA), sampling_seed=seed
            )
            for seed in range(4)
        ]
        response = LLMGenerationResponse()
        request = LLMGenerationRequest(items, sampling=SamplingParameters(temperature=1.5), max_generate_length=200)
        assert runtime.handle_request(request, response), runtime.last_refusal
    for text, reason in zip(response.output_texts, response.finish_reasons, strict=True):
        assert reason is FinishReason.END_ID and len(json.loads(text)["says"]) <= 6
