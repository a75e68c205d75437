"""Places for adapters: who waits for one, who gives it back, and engines that have none."""

from __future__ import annotations

import threading

import pytest
from adapter_requests import RANK, SLOTS, STEPS, asked, attention, engine, expected, ids
from adapters_for_tests import write_adapter
from family_engines import LIMITS, checkpoint
from policy_checkpoints import reference
from tiny_families import TINY_FAMILIES

from edgellm_ros.adapter_format import AdapterFormat
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.builder.adapters import AdapterLimits
from edgellm_ros.builder.build import build_engine
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import CheckpointError, EdgeLLMError, RefusalCode, RequestError
from edgellm_ros.runtime.adapter_tensors import AdapterTensors
from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationResponse,
    Request,
)
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig


@pytest.fixture
def runtime(adapter_folder, adapter_folders):
    with LLMInferenceRuntime(engine(adapter_folder), backend=CPUBackend(1), lora_weights=adapter_folders) as runtime:
        yield runtime


def test_more_adapters_than_places_take_turns(runtime, adapter_folder):
    for name in "abcabcb":
        assert ids(runtime, asked(name)) == [expected(adapter_folder, name)]


def test_a_place_keeps_nothing_of_the_adapter_before(runtime, adapter_folder):
    """The second adapter leaves out most of what the first one filled."""
    form = runtime.rank.adapters._form
    write_adapter(adapter_folder / "some", form, 2, 9, targets=attention)
    runtime.rank.load_lora_weights("some", adapter_folder / "some")
    for name in ("a", "b", "some", "a", "some"):
        assert ids(runtime, asked(name)) == [expected(adapter_folder, name)]


def test_a_batch_that_needs_more_places_than_there_are_is_refused(runtime):
    assert not runtime.handle_request(asked("a", "b", "c"), LLMGenerationResponse())
    assert runtime.last_refusal.code is RefusalCode.NO_CAPACITY
    assert len(ids(runtime, asked("c"))[0]) == STEPS


def test_a_joiner_waits_for_a_place_and_then_answers_alike(runtime, adapter_folder):
    scheduler = RequestEngine(runtime, RequestEngineConfig(max_batch_size=4))
    try:
        handles = {name: scheduler.submit(asked(name)) for name in ("a", "b", "c", "")}
        for name, handle in handles.items():
            assert handle.get(20).output_ids == [expected(adapter_folder, name)]
    finally:
        scheduler.shutdown()


def test_a_place_is_free_as_soon_as_its_sequence_has_left(runtime, adapter_folder):
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
    assert 1 < len(decisions) < 6 and response.output_ids[2] == expected(adapter_folder, "c")


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


def test_a_sequence_that_fails_gives_its_place_back(runtime):
    request = asked("a")
    generation = runtime.rank.begin_generation(runtime.prepare(request), LLMGenerationResponse())
    generation.close()
    response = LLMGenerationResponse()
    assert runtime.handle_request(asked("b", "c"), response)
    assert set(response.finish_reasons) == {FinishReason.LENGTH}


def test_an_engine_without_room_says_so(adapter_folder, adapter_folders):
    plain = build_engine(checkpoint("llama"), adapter_folder / "plain", limits=LIMITS)
    with pytest.raises(EdgeLLMError, match="build it with --lora-rank"):
        LLMInferenceRuntime(plain, backend=CPUBackend(1), lora_weights=adapter_folders)


def test_room_may_be_in_some_projections_only(adapter_folder, adapter_folders):
    path = build_engine(
        checkpoint("llama"),
        adapter_folder / "some-room",
        limits=LIMITS,
        lora=AdapterLimits(RANK, SLOTS, ("q_proj", "v_proj")),
    )
    form = AdapterFormat.from_config(open_engine_directory(path).config.extra)
    assert [target.module[-6:] for target in form.stacks[0].targets] == ["q_proj", "k_proj", "v_proj"]
    assert len(form.stacks) == TINY_FAMILIES["llama"]["num_hidden_layers"]
    fitting = write_adapter(adapter_folder / "fitting", form, 3, 4, targets=attention)
    with LLMInferenceRuntime(path, backend=CPUBackend(1), lora_weights={"fitting": fitting}) as runtime:
        assert ids(runtime, asked("fitting", "")) == [expected(adapter_folder, "fitting"), expected(adapter_folder, "")]
        with pytest.raises(EdgeLLMError, match="which this engine keeps"):
            runtime.rank.load_lora_weights("a", adapter_folders["a"])


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
