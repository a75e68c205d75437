"""Runtimes on the fake backend, and what every finished request must satisfy."""

from __future__ import annotations

import threading
from pathlib import Path

from edgellm_ros.backends.fake import FakeBackend, FakeScript, write_fake_engine_directory
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    AnswerPart,
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
)
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel, StreamChunk

WAIT = 20.0  # seconds after which something that should happen has not


def fake_runtime(path: Path, script: FakeScript | None = None, **limits) -> LLMInferenceRuntime:
    names = ("prefill_chunk", "join_chunk", "mixed_positions", "context_cache")
    options = {name: limits.pop(name) for name in names if name in limits}
    write_fake_engine_directory(path, script or FakeScript(), **limits)
    return LLMInferenceRuntime(path, backend=FakeBackend(), **options)


def item(text: str = "hi", **fields) -> Request:
    return Request((Message("user", text),), **fields)


def request(*items: Request | str, channels=None, **fields) -> LLMGenerationRequest:
    items = tuple(item(entry) if isinstance(entry, str) else entry for entry in items or ("hi",))
    sampling = fields.pop("sampling", SamplingParameters(temperature=0))
    return LLMGenerationRequest(items, sampling=sampling, stream_channels=tuple(channels or ()), **fields)


def drain(channel: StreamChannel) -> list[StreamChunk]:
    chunks = []
    while (chunk := channel.try_pop()) is not None:
        chunks.append(chunk)
    return chunks


def check_stream(chunks: list[StreamChunk], response: LLMGenerationResponse, index: int = 0) -> None:
    """One terminal chunk, last; text, ids and reason are those of the response; every piece of text is valid."""
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    texts = {part: "".join(chunk.text for chunk in chunks if chunk.part is part) for part in AnswerPart}
    assert texts[AnswerPart.ANSWER] == response.output_texts[index]
    assert texts[AnswerPart.REASONING] == response.reasoning_texts[index]
    assert [call for chunk in chunks for call in chunk.tool_calls] == response.tool_calls[index]
    assert all(chunk.part is AnswerPart.TOOL_CALL and not chunk.text for chunk in chunks if chunk.tool_calls)
    assert [token for chunk in chunks for token in chunk.token_ids] == response.output_ids[index]
    assert chunks[-1].finish_reason is response.finish_reasons[index]
    logprobs = [list(candidates) for chunk in chunks for candidates in chunk.logprobs]
    assert logprobs == response.logprobs[index]
    for chunk in chunks:
        assert "\0" not in chunk.text
        chunk.text.encode("utf-8")
        assert chunk.prompt_token_count == response.input_token_counts[index]


def outcome(response: LLMGenerationResponse, index: int = 0) -> tuple[list[int], str, FinishReason]:
    return response.output_ids[index], response.output_texts[index], response.finish_reasons[index]


def answer(runtime: LLMInferenceRuntime, asked: LLMGenerationRequest) -> LLMGenerationResponse:
    response = LLMGenerationResponse()
    assert runtime.handle_request(asked, response), runtime.last_refusal
    return response


def stepped(runtime: LLMInferenceRuntime, asked: LLMGenerationRequest, before_step=None) -> LLMGenerationResponse:
    """The same by hand; ``before_step(session, index)`` runs before each step."""
    response = LLMGenerationResponse()
    prepared = runtime.prepare(asked)
    generation = runtime.rank.begin_generation(prepared, response)
    assert generation is not None, runtime.rank.last_refusal
    session = GenerationSession(runtime.rank, generation)
    assert session.prime_from_prefill()
    index = 0
    while not session.finished():
        if before_step is not None:
            before_step(session, index)
        assert session.advance()
        index += 1
    assert runtime.rank.finish_generation(generation, prepared, response)
    return response


def edgellm_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("edgellm")}


STR_1 = "é e\u0301x ďábelské A 世ab 삼겹살 👩‍👩‍👧 🏳️‍🌈 🇪🇸"
DRAWN = SamplingParameters(temperature=1.3, top_k=40, top_p=0.95)
SOME = [
    item("first", sampling=DRAWN, sampling_seed=11, max_generate_length=12),
    item("second one", sampling=DRAWN, sampling_seed=12, max_generate_length=40, stop_strings=("e", "th")),
    item("third, longer than the others", max_generate_length=25),
    item("fourth", sampling=DRAWN, sampling_seed=13, max_generate_length=60),
]
