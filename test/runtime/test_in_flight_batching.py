"""Whoever shares a batch with whom, from whichever step on, everybody says what it says alone."""

from __future__ import annotations

import itertools
import random

import family_engines
import numpy as np
import pytest
from compositions import Composition, outcomes, play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime_helpers import answer, drain, fake_runtime, item, outcome, request, stepped
from tiny_families import TINY_FAMILIES

from edgellm_ros.backends.fake import FakeMode, FakeScript, Fault
from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.compatibility import BatchCompatibility
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, Request, SamplingParameters
from edgellm_ros.runtime.streaming import StreamChannel

DRAWN = SamplingParameters(temperature=1.2, top_k=40, top_p=0.95)
ITEMS = [
    item("a", sampling=DRAWN, sampling_seed=1, max_generate_length=12),
    item("the second, of some length", sampling=DRAWN, sampling_seed=2, max_generate_length=30, stop_strings=("e",)),
    item("x" * 70, max_generate_length=9),
    item("fourth", sampling=DRAWN, sampling_seed=4, max_generate_length=20, logit_bias={101: 4.0}),
    item("y" * 33, sampling=DRAWN, sampling_seed=5, max_generate_length=1),
    item("last", max_generate_length=40),
]
SETTINGS = [(1, 16), (3, 16), (4, 12), (8, 64), (64, 0), (64, 400)]


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda pair: f"chunk{pair[0]}-mixed{pair[1]}")
def fake(request, tmp_path_factory):
    join_chunk, mixed_positions = request.param
    path = tmp_path_factory.mktemp("seeded") / "engine"
    script = FakeScript(mode=FakeMode.SEEDED)
    with fake_runtime(path, script, join_chunk=join_chunk, mixed_positions=mixed_positions) as runtime:
        yield runtime, [outcome(answer(runtime, request_of(entry))) for entry in ITEMS]


def request_of(entry: Request) -> LLMGenerationRequest:
    return request(entry)


@st.composite
def some_composition(draw):
    who = draw(st.lists(st.integers(0, len(ITEMS) - 1), min_size=1, max_size=len(ITEMS), unique=True))
    arrivals = {index: draw(st.integers(0, 25)) for index in who}
    founders = [index for index in who if arrivals[index] == min(arrivals.values())]
    for index in founders[4:]:  # the engine has four rows
        arrivals[index] += 1
    cancels = draw(st.dictionaries(st.sampled_from(who), st.integers(0, 30), max_size=2))
    return Composition(arrivals, cancels)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(composition=some_composition())
def test_any_composition_gives_what_each_sequence_gives_alone(fake, composition):
    runtime, alone = fake
    found = outcomes(play(runtime, ITEMS, composition))
    assert set(found) == set(composition.arrivals)
    for index, (ids, text, reason) in found.items():
        if reason is FinishReason.CANCELLED:
            assert index in composition.cancels
            assert alone[index][0][: len(ids)] == ids and alone[index][1].startswith(text)
        else:
            assert (ids, text, reason) == alone[index]


FAMILY_ITEMS = [
    Request(ignore_eos=True, sampling=sampling, sampling_seed=seed, max_generate_length=length)
    for seed, (sampling, length) in enumerate(
        [(None, 6), (DRAWN, 9), (SamplingParameters(temperature=0.8, repetition_penalty=1.3), 12), (None, 4)]
    )
]
FAMILY_PROMPTS = [np.random.default_rng(seed).integers(3, 290, count).tolist() for seed, count in ((1, 9), (2, 21),
                  (3, 30), (4, 2))]  # fmt: skip


def given_ids(*indices: int) -> LLMGenerationRequest:
    return LLMGenerationRequest(
        tuple(FAMILY_ITEMS[index] for index in indices),
        sampling=SamplingParameters(temperature=0),
        pre_tokenized_input_ids=[FAMILY_PROMPTS[index] for index in indices],
    )


def counted(owner, name: str) -> list[int]:
    """One entry for each call of a method from now on."""
    calls, method = [], getattr(owner, name)
    setattr(owner, name, lambda *arguments: calls.append(1) or method(*arguments))
    return calls


CASES = [(family, "onnxruntime") for family in TINY_FAMILIES]
CASES += [(family, lowering) for family in ("llama-3", "gemma3") for lowering in family_engines.LOWERINGS[1:]]


@pytest.mark.parametrize(("family", "lowering"), CASES)
def test_every_family_gives_the_same_in_mixed_calls(family, lowering):
    """Joiners whose prompts run in calls of their own, or together with the rows that decode."""
    path = family_engines.engine(family, lowering)
    found = {}
    for name, options in {
        "alone": None,
        "apart": {"mixed_positions": 0},
        "mixed": {"join_chunk": 4, "mixed_positions": 16},
        "wide": {"join_chunk": 32, "mixed_positions": 128},
    }.items():
        with LLMInferenceRuntime(path, threads=1, **options or {}) as runtime:
            mixed = counted(runtime.rank.executor, "decode_and_prefill")
            if options is None:
                found[name] = [outcome(answer(runtime, given_ids(index))) for index in range(4)]
                continue
            results = {}

            def before_step(session, step, runtime=runtime, results=results):
                if step in (1, 2, 3):
                    decision = session.admit_request(runtime.prepare(given_ids(step)), step, 10 + step)
                    assert decision is AdmitDecision.ADMITTED
                for index, result in session.take_completed_at_or_above(1).items():
                    results[index] = outcome(session.materialize_result(result))

            response = stepped(runtime, given_ids(0), before_step)
            found[name] = [outcome(response), *(results.get(index) for index in (1, 2, 3))]
            can = runtime.rank.executor.engine.capabilities.mixed_positions > 0
            assert bool(mixed) == (can and name != "apart")
    for name in ("apart", "mixed", "wide"):
        harvested = [pair for pair in zip(found[name], found["alone"], strict=True) if pair[0] is not None]
        assert len(harvested) >= 2
        assert all(one == other for one, other in harvested), name


@pytest.mark.parametrize(("join_chunk", "calls"), [(64, 2), (8, 1)], ids=["apart", "together"])
def test_rows_that_decode_get_a_token_with_every_chunk_of_a_joiner(tmp_path, join_chunk, calls):
    """However long its prompt is: never more than one chunk of it lies between two tokens."""
    script = FakeScript(answers=["abcdefghijklmnopqrstuvwxyz"])
    with fake_runtime(tmp_path / "engine", script, join_chunk=join_chunk) as runtime:
        engine = runtime.rank.executor.engine
        shapes: list[tuple[int, ...]] = []
        run = engine.run
        engine.run = lambda given, *rest: (shapes.append(given["inputs_embeds"][:2]), run(given, *rest))[1]
        channel = StreamChannel()
        got: list[int] = []

        def before_step(session, step):
            if step == 2:
                arriving = runtime.prepare(request("z" * 100))
                assert session.admit_request(arriving, 7, 70) is AdmitDecision.ADMITTED
            if not channel.finished:
                got.append(len(drain(channel)))
            steps.append(len(shapes))

        steps: list[int] = []
        stepped(runtime, request("hi", channels=[channel]), before_step)
        assert all(count == 1 for count in got[1:])  # one token a step, also while the joiner's prompt runs
        per_step = [after - before for before, after in itertools.pairwise(steps)]
        assert per_step[2] == calls
        assert all(chunk <= join_chunk for _, chunk in shapes[1:])


@pytest.mark.parametrize("fault", [Fault.RAISE, Fault.OUT_OF_MEMORY, Fault.CRASH])
def test_a_prompt_that_fails_in_a_mixed_call_ends_alone(tmp_path, fault):
    """The failing call is taken apart, so that nobody else pays for it."""
    script = FakeScript(answers=["abcdefgh"], fault=fault, fault_step=0, fault_times=0)
    good = FakeScript(answers=["abcdefgh"])
    with fake_runtime(tmp_path / "good", good) as runtime:
        wanted = outcome(answer(runtime, request("hi")))
    with fake_runtime(tmp_path / "engine", script, join_chunk=2, mixed_positions=64) as runtime:
        engine = runtime.rank.executor.engine
        engine._faults_left = 0  # the founder's prompt runs
        results = {}

        def before_step(session, step):
            if step == 1:
                engine._faults_left = 1 << 30
                assert session.admit_request(runtime.prepare(request("x")), 5, 50) is AdmitDecision.ADMITTED
            for index, result in session.take_completed_at_or_above(1).items():
                results[index] = session.materialize_result(result)

        assert outcome(stepped(runtime, request("hi"), before_step)) == wanted
        assert results[5].finish_reasons == [FinishReason.ERROR] and results[5].messages[0]


def test_a_policy_says_who_may_share_a_batch():
    plain = BatchCompatibility()
    founder, other = request("a", sampling=DRAWN, max_generate_length=5), request("b", num_logprobs=3)
    assert plain.allows(founder, other)
    assert not plain.allows(founder, request("b", save_system_prompt_kv_cache=True))
    strict = BatchCompatibility(must_agree=("sampling", "num_logprobs"))
    assert not strict.allows(founder, other)
    assert strict.allows(founder, request("c", sampling=DRAWN))
    with pytest.raises(EdgeLLMError, match="'temperatur' is no field of a request; want some of "):
        BatchCompatibility(must_agree=("temperatur",))


@pytest.mark.parametrize("name", ["join_chunk", "prefill_chunk"])
def test_chunk_settings_are_checked(tmp_path, name):
    with pytest.raises(EdgeLLMError, match=f"{name} is 0; want a whole number of at least 1"):
        fake_runtime(tmp_path / "engine", **{name: 0})


def test_the_order_of_arrivals_and_holes_is_random_for_long(tmp_path):
    """Forty sequences through four rows."""
    generator = random.Random(3)
    items = [
        item("p" * generator.randrange(1, 60), sampling=DRAWN, sampling_seed=index, max_generate_length=
             generator.randrange(1, 30))
        for index in range(40)
    ]  # fmt: skip
    with fake_runtime(tmp_path / "engine", FakeScript(mode=FakeMode.SEEDED), join_chunk=8) as runtime:
        alone = {index: outcome(answer(runtime, request(entry))) for index, entry in enumerate(items)}
        arrivals = {index: index // 2 for index in range(40)}
        assert outcomes(play(runtime, items, Composition(arrivals))) == alone
