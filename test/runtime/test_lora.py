"""Adapters: tokens equal those of merged weights, each row of a batch with its own, and places that are shared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from adapter_requests import RANK, SLOTS, STEPS, asked, attention, engine, expected, greedy, ids
from adapters_for_tests import merged, write_adapter
from family_engines import LIMITS, LOWERINGS, ROWS, TOLERANCE, checkpoint
from reference_decoder import ReferenceDecoder
from reference_llama import read_folder
from tiny_families import TINY_FAMILIES

from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.builder.adapters import AdapterLimits
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import EdgeLLMError, MisuseError, RefusalCode
from edgellm_ros.runtime.boundary import AdmitDecision, SlotSeed
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.executor import ModelExecutor
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.peft_folder import read_peft_folder
from edgellm_ros.runtime.request import (
    LLMGenerationResponse,
    Request,
    SamplingParameters,
)

CASES = [(family, "onnxruntime") for family in TINY_FAMILIES]
CASES += [(family, lowering) for family in ("llama-3", "gemma2", "qwen3") for lowering in LOWERINGS[1:]]


def executor_with_adapters(adapter_folder: Path, family: str, lowering: str):
    """An executor whose places 1 and 2 hold adapters of different ranks, and their adapter_folders."""
    path = adapter_folder / f"{family}-{lowering}"
    build_engine(checkpoint(family), path, lowering=lowering, limits=LIMITS, lora=AdapterLimits(RANK, SLOTS))
    executor = ModelExecutor(open_engine_directory(path), CPUBackend(1), prefill_chunk=8, score_chunk=8)
    form = executor.adapters.form
    adapter_folders = [
        write_adapter(adapter_folder / f"{path.name}-all", form, 3, 1),
        write_adapter(adapter_folder / f"{path.name}-some", form, 4, 2, targets=attention, use_rslora=True),
    ]
    for slot, one in enumerate(adapter_folders, 1):
        executor.adapters.load(read_peft_folder(one, form), slot)
    return executor, adapter_folders


@pytest.mark.parametrize(("family", "lowering"), CASES)
def test_answers_are_those_of_merged_weights(adapter_folder, family, lowering):
    """Three rows of a batch: no adapter, one of rank 3 on everything, one of rank 4 on some projections."""
    executor, adapter_folders = executor_with_adapters(adapter_folder, family, lowering)
    config, tensors = read_folder(checkpoint(family))
    references = [
        ReferenceDecoder(config, weights) for weights in (tensors, *(merged(tensors, one) for one in adapter_folders))
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


@pytest.fixture
def runtime(adapter_folder, adapter_folders):
    with LLMInferenceRuntime(engine(adapter_folder), backend=CPUBackend(1), lora_weights=adapter_folders) as runtime:
        yield runtime


def test_sequences_of_a_batch_have_their_own_adapters(runtime, adapter_folder):
    answers = ids(runtime, asked("a", "", "b", "a"))
    assert answers == [expected(adapter_folder, name) for name in ("a", "", "b", "a")]
    assert len({tuple(answer) for answer in answers}) == 3


def test_rows_keep_their_adapters_when_others_leave(runtime, adapter_folder):
    request = asked("a", "b", "")
    request.requests = [
        Request(lora_weights_name="a", ignore_eos=True, max_generate_length=1),
        *request.requests[1:],
    ]
    assert ids(runtime, request)[1:] == [expected(adapter_folder, "b"), expected(adapter_folder, "")]


def test_the_batch_names_an_adapter_for_all(runtime, adapter_folder):
    """An item may name another one, or none at all."""
    names = (None, "b", "")
    request = asked("", "", "")
    request.requests = [Request(ignore_eos=True, lora_weights_name=name) for name in names]
    request.lora_weights_name = "a"
    assert ids(runtime, request) == [expected(adapter_folder, name) for name in ("a", "b", "")]


def test_an_unknown_adapter_is_refused_by_name(runtime):
    assert not runtime.handle_request(asked("", "z"), LLMGenerationResponse())
    assert runtime.last_refusal.code is RefusalCode.UNKNOWN_ADAPTER and "'z'" in runtime.last_refusal.message
    assert "a, b, c" in runtime.last_refusal.message


def test_adapters_are_loaded_replaced_and_unloaded_at_run_time(runtime, adapter_folder, adapter_folders):
    runtime.rank.load_lora_weights("new", adapter_folders["a"])
    assert ids(runtime, asked("new")) == [expected(adapter_folder, "a")]
    runtime.rank.load_lora_weights("new", adapter_folders["b"])
    assert ids(runtime, asked("new")) == [expected(adapter_folder, "b")]
    runtime.rank.unload_lora_weights("new")
    assert not runtime.handle_request(asked("new"), LLMGenerationResponse())
    with pytest.raises(EdgeLLMError, match="'new' is not loaded"):
        runtime.rank.unload_lora_weights("new")


def test_an_adapter_in_use_stays_as_it_is(runtime, adapter_folder, adapter_folders):
    response = LLMGenerationResponse()
    generation = runtime.rank.begin_generation(runtime.prepare(asked("a")), response)
    for change in (
        lambda: runtime.rank.load_lora_weights("a", adapter_folders["b"]),
        lambda: runtime.rank.unload_lora_weights("a"),
    ):
        with pytest.raises(MisuseError, match="in use"):
            change()
    generation.close()
    runtime.rank.load_lora_weights("a", adapter_folders["b"])
    assert ids(runtime, asked("a")) == [expected(adapter_folder, "b")]


@pytest.mark.parametrize("context_cache", [ContextCacheConfig(), None])
def test_prefixes_are_not_reused_across_adapters(adapter_folder, adapter_folders, context_cache):
    with LLMInferenceRuntime(
        engine(adapter_folder), backend=CPUBackend(1), lora_weights=adapter_folders, context_cache=context_cache
    ) as runtime:
        for name in ("a", "", "b", "a", ""):
            assert ids(runtime, asked(name)) == [expected(adapter_folder, name)]
        runtime.rank.load_lora_weights("a", adapter_folders["c"])
        assert ids(runtime, asked("a")) == [expected(adapter_folder, "c")]


def test_a_saved_system_prompt_is_that_of_its_adapter(runtime, adapter_folder, adapter_folders):
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
    runtime.rank.load_lora_weights("a", adapter_folders["b"])
    ask("a")
    assert reused == [False, False, True, False, True, False]


def test_a_seed_made_by_hand_reuses_the_prefixes_of_its_own_adapter(adapter_folder, adapter_folders):
    """Its cache policy says nothing of an adapter, and must not have to."""
    with LLMInferenceRuntime(
        engine(adapter_folder), backend=CPUBackend(1), lora_weights=adapter_folders, context_cache=ContextCacheConfig()
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
        assert [taken[place].output_ids for place in range(1, 6)] == [expected(adapter_folder, name) for name in names]
        assert runtime.rank.get_context_cache_metrics().hit_sequences
