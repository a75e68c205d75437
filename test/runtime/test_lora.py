"""Adapters: tokens equal those of merged weights, each row of a batch with its own, and places that are shared."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from adapters_for_tests import merged, write_adapter
from family_engines import LIMITS, LOWERINGS, ROWS, TOLERANCE, checkpoint
from policy_checkpoints import reference
from reference_decoder import ReferenceDecoder
from reference_llama import read_folder
from tiny_families import TINY_FAMILIES

from edgellm_ros.adapter_format import AdapterFormat
from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.builder.adapters import AdapterLimits
from edgellm_ros.builder.build import build_engine
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import CheckpointError, EdgeLLMError, MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime.adapter_tensors import AdapterTensors
from edgellm_ros.runtime.boundary import AdmitDecision, SlotSeed
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.executor import ModelExecutor
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.peft_folder import read_peft_folder
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Request,
    SamplingParameters,
)
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig

RANK, SLOTS, STEPS = 4, 2, 6
CASES = [(family, "onnxruntime") for family in TINY_FAMILIES]
CASES += [(family, lowering) for family in ("llama-3", "gemma2", "qwen3") for lowering in LOWERINGS[1:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


def attention(module: str) -> bool:
    return module.endswith(("q_proj", "v_proj"))


def executor_with_adapters(folder: Path, family: str, lowering: str):
    """An executor whose places 1 and 2 hold adapters of different ranks, and their folders."""
    path = folder / f"{family}-{lowering}"
    build_engine(checkpoint(family), path, lowering=lowering, limits=LIMITS, lora=AdapterLimits(RANK, SLOTS))
    executor = ModelExecutor(open_engine_directory(path), CPUBackend(1), prefill_chunk=8, score_chunk=8)
    form = executor.adapters.form
    folders = [
        write_adapter(folder / f"{path.name}-all", form, 3, 1),
        write_adapter(folder / f"{path.name}-some", form, 4, 2, targets=attention, use_rslora=True),
    ]
    for slot, one in enumerate(folders, 1):
        executor.adapters.load(read_peft_folder(one, form), slot)
    return executor, folders


def greedy(reference: ReferenceDecoder, prompt: list[int], steps: int) -> list[int]:
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(reference.logits(ids)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(("family", "lowering"), CASES)
def test_answers_are_those_of_merged_weights(folder, family, lowering):
    """Three rows of a batch: no adapter, one of rank 3 on everything, one of rank 4 on some projections."""
    executor, folders = executor_with_adapters(folder, family, lowering)
    config, tensors = read_folder(checkpoint(family))
    references = [
        ReferenceDecoder(config, weights) for weights in (tensors, *(merged(tensors, one) for one in folders))
    ]
    tokens = []
    for row, prompt in enumerate(ROWS):
        executor.start_row(row, SamplingRow(), prompt)
        executor.adapters.set_row(row, row)
        logits = executor.score(row, prompt[:8], 0)
        assert np.abs(logits - references[row].logits(prompt[:8])).max() < 2 * TOLERANCE
        done = 8
        while done < len(prompt):
            done, first = executor.prefill(row, prompt, done)
        tokens.append([first])
    lengths = [len(prompt) for prompt in ROWS]
    for _ in range(STEPS - 1):
        step = executor.decode([answer[-1] for answer in tokens], lengths)
        for answer, token in zip(tokens, step, strict=True):
            answer.append(token)
        lengths = [length + 1 for length in lengths]
    assert tokens == [greedy(one, prompt, STEPS) for one, prompt in zip(references, ROWS, strict=True)]
    executor.close()


@cache
def engine(folder: Path) -> Path:
    return build_engine(checkpoint("llama"), folder / "engine", limits=LIMITS, lora=AdapterLimits(RANK, SLOTS))


@pytest.fixture(scope="module")
def folders(folder):
    form = AdapterFormat.from_config(open_engine_directory(engine(folder)).config.extra)
    return {name: write_adapter(folder / name, form, 2 + place, place) for place, name in enumerate("abc")}


@pytest.fixture
def runtime(folder, folders):
    with LLMInferenceRuntime(engine(folder), backend=CPUBackend(1), lora_weights=folders) as runtime:
        yield runtime


def asked(*names: str, prompt=ROWS[0], **fields) -> LLMGenerationRequest:
    fields = {"max_generate_length": STEPS, "sampling": SamplingParameters(temperature=0), **fields}
    return LLMGenerationRequest(
        [Request(lora_weights_name=name, ignore_eos=True) for name in names],
        pre_tokenized_input_ids=[list(prompt) for _ in names],
        **fields,
    )


def ids(runtime, request, **options) -> list[list[int]]:
    response = LLMGenerationResponse()
    assert runtime.handle_request(request, response, **options), runtime.last_refusal
    return response.output_ids


@cache
def expected(folder: Path, name: str) -> list[int]:
    config, tensors = read_folder(checkpoint("llama"))
    weights = merged(tensors, folder / name) if name else tensors
    return greedy(ReferenceDecoder(config, weights), ROWS[0], STEPS)


def test_sequences_of_a_batch_have_their_own_adapters(runtime, folder):
    answers = ids(runtime, asked("a", "", "b", "a"))
    assert answers == [expected(folder, name) for name in ("a", "", "b", "a")]
    assert len({tuple(answer) for answer in answers}) == 3


def test_rows_keep_their_adapters_when_others_leave(runtime, folder):
    request = asked("a", "b", "")
    request.requests = [
        Request(lora_weights_name="a", ignore_eos=True, max_generate_length=1),
        *request.requests[1:],
    ]
    assert ids(runtime, request)[1:] == [expected(folder, "b"), expected(folder, "")]


def test_more_adapters_than_places_take_turns(runtime, folder):
    for name in "abcabcb":
        assert ids(runtime, asked(name)) == [expected(folder, name)]


def test_a_place_keeps_nothing_of_the_adapter_before(runtime, folder):
    """The second adapter leaves out most of what the first one filled."""
    form = runtime.rank.adapters._form
    write_adapter(folder / "some", form, 2, 9, targets=attention)
    runtime.rank.load_lora_weights("some", folder / "some")
    for name in ("a", "b", "some", "a", "some"):
        assert ids(runtime, asked(name)) == [expected(folder, name)]


def test_a_batch_that_needs_more_places_than_there_are_is_refused(runtime):
    assert not runtime.handle_request(asked("a", "b", "c"), LLMGenerationResponse())
    assert runtime.last_refusal.code is RefusalCode.NO_CAPACITY
    assert len(ids(runtime, asked("c"))[0]) == STEPS


def test_a_joiner_waits_for_a_place_and_then_answers_alike(runtime, folder):
    scheduler = RequestEngine(runtime, RequestEngineConfig(max_batch_size=4))
    try:
        handles = {name: scheduler.submit(asked(name)) for name in ("a", "b", "c", "")}
        for name, handle in handles.items():
            assert handle.get(20).output_ids == [expected(folder, name)]
    finally:
        scheduler.shutdown()


def test_a_place_is_free_as_soon_as_its_sequence_has_left(runtime, folder):
    """And not only when the batch is over."""
    decisions: list[AdmitDecision] = []

    def hook(boundary):
        if boundary.resident_count() and AdmitDecision.ADMITTED not in decisions:
            decisions.append(boundary.admit_request(runtime.prepare(asked("c")), 5, 50))

    request = asked("a", "b")
    request.requests = [
        Request(lora_weights_name=name, ignore_eos=True, max_generate_length=length)
        for name, length in (("a", 24), ("b", 3))
    ]
    response = LLMGenerationResponse()
    assert runtime.handle_request(request, response, boundary_hook=hook)
    assert decisions == [AdmitDecision.NO_CAPACITY] * (len(decisions) - 1) + [AdmitDecision.ADMITTED]
    assert 1 < len(decisions) < 6 and response.output_ids[2] == expected(folder, "c")


def test_nobody_overtakes_the_first_that_waits_for_a_place(runtime):
    """Two have the places, a third waits for one; the fourth needs none and stays behind it all the same."""
    submitted = threading.Event()
    first = asked("a", on_token_generated=lambda *token: submitted.wait(20))
    scheduler = RequestEngine(runtime, RequestEngineConfig(max_batch_size=4))
    try:
        handles = [scheduler.submit(request) for request in (first, asked("b"), asked("c"), asked(""))]
        submitted.set()
        starts = [handle.get(20).times[0].prefill_start for handle in handles]
        metrics = scheduler.metrics()
        assert metrics.stalls_no_capacity > 0 and metrics.queue_latency_count == 4  # each waited once
    finally:
        submitted.set()
        scheduler.shutdown()
    assert starts == sorted(starts)


@pytest.mark.parametrize("place", ["sequence.Sequence.start", "sequence.Sequence.attach", "place of a row"])
@pytest.mark.parametrize("fault", [ArithmeticError, RequestError])
def test_an_admission_that_fails_holds_no_adapter(runtime, monkeypatch, place, fault):
    def broken(*arguments):
        raise fault("injected")

    def no_place(tensors, row, slot):
        if slot:
            raise fault("injected")

    def hook(boundary):
        if runtime.rank.adapters._slots.users("b") or boundary.resident_count() != 1:
            return
        with monkeypatch.context() as patch:
            if place == "place of a row":
                patch.setattr(AdapterTensors, "set_row", no_place)
            else:
                patch.setattr(f"edgellm_ros.runtime.{place}", broken)
            with pytest.raises(fault):
                boundary.admit_request(runtime.prepare(asked("b")), 5, 50)
        assert runtime.rank.adapters._slots.users("b") == 0

    assert runtime.handle_request(asked("a"), LLMGenerationResponse(), boundary_hook=hook)


def test_the_batch_names_an_adapter_for_all(runtime, folder):
    """An item may name another one, or none at all."""
    names = (None, "b", "")
    request = asked("", "", "")
    request.requests = [Request(ignore_eos=True, lora_weights_name=name) for name in names]
    request.lora_weights_name = "a"
    assert ids(runtime, request) == [expected(folder, name) for name in ("a", "b", "")]


def test_an_unknown_adapter_is_refused_by_name(runtime):
    assert not runtime.handle_request(asked("", "z"), LLMGenerationResponse())
    assert runtime.last_refusal.code is RefusalCode.UNKNOWN_ADAPTER and "'z'" in runtime.last_refusal.message
    assert "a, b, c" in runtime.last_refusal.message


def test_adapters_are_loaded_replaced_and_unloaded_at_run_time(runtime, folder, folders):
    runtime.rank.load_lora_weights("new", folders["a"])
    assert ids(runtime, asked("new")) == [expected(folder, "a")]
    runtime.rank.load_lora_weights("new", folders["b"])
    assert ids(runtime, asked("new")) == [expected(folder, "b")]
    runtime.rank.unload_lora_weights("new")
    assert not runtime.handle_request(asked("new"), LLMGenerationResponse())
    with pytest.raises(EdgeLLMError, match="'new' is not loaded"):
        runtime.rank.unload_lora_weights("new")


def test_an_adapter_in_use_stays_as_it_is(runtime, folder, folders):
    response = LLMGenerationResponse()
    generation = runtime.rank.begin_generation(runtime.prepare(asked("a")), response)
    for change in (
        lambda: runtime.rank.load_lora_weights("a", folders["b"]),
        lambda: runtime.rank.unload_lora_weights("a"),
    ):
        with pytest.raises(MisuseError, match="in use"):
            change()
    generation.close()
    runtime.rank.load_lora_weights("a", folders["b"])
    assert ids(runtime, asked("a")) == [expected(folder, "b")]


@pytest.mark.parametrize("context_cache", [ContextCacheConfig(), None])
def test_prefixes_are_not_reused_across_adapters(folder, folders, context_cache):
    with LLMInferenceRuntime(
        engine(folder), backend=CPUBackend(1), lora_weights=folders, context_cache=context_cache
    ) as runtime:
        for name in ("a", "", "b", "a", ""):
            assert ids(runtime, asked(name)) == [expected(folder, name)]
        runtime.rank.load_lora_weights("a", folders["c"])
        assert ids(runtime, asked("a")) == [expected(folder, "c")]


def test_a_saved_system_prompt_is_that_of_its_adapter(runtime, folder, folders):
    """Of its name, and of what was loaded under it when it was saved."""
    saved, reused = "You move an arm. ", []
    prompt = tuple(runtime.tokenizer.encode(saved)) + tuple(ROWS[0][:4])

    def ask(name):
        taken = {}

        def hook(boundary):
            taken.update(boundary.take_completed_at_or_above(1))
            if not started:
                started.append(boundary.admit_sequence(SlotSeed(prompt, 1, greedily, 0, 4, name, system_prompt=saved)))

        started = []
        ids(runtime, asked("", max_generate_length=20), boundary_hook=hook)
        reused.append(taken[1].reused_length > 0)
        return taken[1].output_ids

    greedily = SamplingParameters(temperature=0)
    cold = {name: ask(name) for name in ("", "a")}
    assert runtime.rank.gen_and_save_system_prompt_kv_cache(saved)
    assert ask("") == cold[""] and ask("a") == cold["a"]
    assert runtime.rank.gen_and_save_system_prompt_kv_cache(saved, "a")
    assert ask("a") == cold["a"]
    runtime.rank.load_lora_weights("a", folders["b"])
    ask("a")
    assert reused == [False, False, True, False, True, False]


def test_a_seed_made_by_hand_reuses_the_prefixes_of_its_own_adapter(folder, folders):
    """Its cache policy says nothing of an adapter, and must not have to."""
    with LLMInferenceRuntime(
        engine(folder), backend=CPUBackend(1), lora_weights=folders, context_cache=ContextCacheConfig()
    ) as runtime:
        taken = {}

        def hook(boundary):
            taken.update(boundary.take_completed_at_or_above(1))
            for place, name in enumerate(("a", "", "b", "a", ""), 1):
                if place not in asked_for and boundary.resident_count() == 1:
                    asked_for.add(place)
                    greedily = SamplingParameters(temperature=0)
                    seed = SlotSeed(tuple(ROWS[0]), place, greedily, 0, STEPS, name, ignore_eos=True)
                    assert boundary.admit_sequence(seed) is AdmitDecision.ADMITTED
                    return

        asked_for: set[int] = set()
        ids(runtime, asked("", max_generate_length=60), boundary_hook=hook)
        names = ("a", "", "b", "a", "")
        assert [taken[place].output_ids for place in range(1, 6)] == [expected(folder, name) for name in names]
        assert runtime.rank.get_context_cache_metrics().hit_sequences


def test_a_sequence_that_fails_gives_its_place_back(runtime):
    request = asked("a")
    generation = runtime.rank.begin_generation(runtime.prepare(request), LLMGenerationResponse())
    generation.close()
    response = LLMGenerationResponse()
    assert runtime.handle_request(asked("b", "c"), response)
    assert set(response.finish_reasons) == {FinishReason.LENGTH}


def test_an_engine_without_room_says_so(folder, folders):
    plain = build_engine(checkpoint("llama"), folder / "plain", limits=LIMITS)
    with pytest.raises(EdgeLLMError, match="build it with --lora-rank"):
        LLMInferenceRuntime(plain, backend=CPUBackend(1), lora_weights=folders)


def test_room_may_be_in_some_projections_only(folder, folders):
    path = build_engine(
        checkpoint("llama"), folder / "some-room", limits=LIMITS, lora=AdapterLimits(RANK, SLOTS, ("q_proj", "v_proj"))
    )
    form = AdapterFormat.from_config(open_engine_directory(path).config.extra)
    assert [target.module[-6:] for target in form.stacks[0].targets] == ["q_proj", "k_proj", "v_proj"]
    assert len(form.stacks) == TINY_FAMILIES["llama"]["num_hidden_layers"]
    fitting = write_adapter(folder / "fitting", form, 3, 4, targets=attention)
    with LLMInferenceRuntime(path, backend=CPUBackend(1), lora_weights={"fitting": fitting}) as runtime:
        assert ids(runtime, asked("fitting", "")) == [expected(folder, "fitting"), expected(folder, "")]
        with pytest.raises(EdgeLLMError, match="which this engine keeps"):
            runtime.rank.load_lora_weights("a", folders["a"])


@pytest.mark.parametrize(
    ("rank", "slots", "targets", "words"),
    [
        (0, 1, (), "lora_rank is 0"),
        (4, 65, (), "lora_slots is 65"),
        (True, 1, (), "lora_rank is True"),
        (4, 1, ("qkv",), "lora_targets has 'qkv'"),
    ],
)
def test_room_outside_its_limits_is_refused(rank, slots, targets, words):
    with pytest.raises(CheckpointError, match=words):
        AdapterLimits(rank, slots, targets)


@pytest.mark.parametrize("option", ["--lora-slots", "--lora-targets"])
def test_the_command_wants_a_rank_with_its_other_options(option, tmp_path, capsys):
    assert main(["build", str(tmp_path), str(tmp_path / "out"), option, "2"]) == 2
    assert f"{option} is given without --lora-rank" in capsys.readouterr().err


def test_a_policy_has_no_room_for_adapters(tmp_path):
    with pytest.raises(CheckpointError, match="in a policy"):
        build_engine(reference("pi0")[0], tmp_path / "engine", lora=AdapterLimits(4))
