"""Sequences that meet in one batch in every possible way: who founds it, who joins at which step, who is cancelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime_helpers import outcome, request

from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import LLMGenerationResponse, Request
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel


@dataclass(frozen=True)
class Composition:
    """Step at which each sequence arrives (0: it founds the batch), and the step before which some are cancelled."""

    arrivals: Mapping[int, int]
    cancels: Mapping[int, int] = field(default_factory=dict)


def play(
    runtime: LLMInferenceRuntime, items: Sequence[Request], composition: Composition, **fields: Any
) -> dict[int, LLMGenerationResponse]:
    """Responses of one element by index of ``items``; the first to arrive found the batch whenever that is.

    ``fields`` are those of the requests that bring them.
    """
    waiting = sorted(composition.arrivals, key=lambda index: (composition.arrivals[index], index))
    first = composition.arrivals[waiting[0]]
    founders = [index for index in waiting if composition.arrivals[index] == first]
    waiting = waiting[len(founders) :]
    channels = {index: StreamChannel() for index in composition.arrivals}
    responses: dict[int, LLMGenerationResponse] = {}
    founding = [items[index] for index in founders]
    prepared = runtime.prepare(request(*founding, channels=[channels[index] for index in founders], **fields))
    generation = runtime.rank.begin_generation(prepared, LLMGenerationResponse())
    assert generation is not None, runtime.rank.last_refusal
    with generation:
        session = GenerationSession(runtime.rank, generation)
        assert session.prime_from_prefill()
        step = 0
        while not session.finished() or waiting:
            for index, at in composition.cancels.items():
                if at == step:
                    channels[index].cancel()
            while waiting and (composition.arrivals[waiting[0]] <= step or session.finished()):
                index = waiting[0]
                arriving = runtime.prepare(request(items[index], channels=[channels[index]], **fields))
                decision = session.admit_request(arriving, 100 + index, 1000 + index)
                if decision is AdmitDecision.NO_CAPACITY:
                    break
                waiting.pop(0)
            assert session.advance()
            step += 1
            _harvest(session, founders, responses)
        _harvest(session, founders, responses)
        assert session.resident_count() == 0
        assert runtime.rank.finish_generation(generation, prepared, LLMGenerationResponse())
    assert all(channel.finished for channel in channels.values())
    return responses


def _harvest(session: GenerationSession, founders: Sequence[int], responses: dict[int, LLMGenerationResponse]) -> None:
    for index, result in session.take_completed_at_or_above(0).items():
        name = index - 100 if index >= 100 else founders[index]
        assert name not in responses
        responses[name] = session.materialize_result(result)


def outcomes(responses: Mapping[int, LLMGenerationResponse]) -> dict[int, object]:
    return {index: outcome(response) for index, response in responses.items()}
