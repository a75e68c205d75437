"""Adapters that come, go and are replaced while many threads ask for them."""

from __future__ import annotations

import random
import threading

import pytest
from adapters_for_tests import write_adapter
from family_engines import checkpoint
from runtime_audit import audit
from runtime_helpers import WAIT, answer

from edgellm_ros.adapter_format import AdapterFormat
from edgellm_ros.builder.adapters import AdapterLimits
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import EdgeLLMError, MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, Request, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig

LIMITS = BuilderLimits(max_batch_size=4, max_input_len=64, max_kv_cache_capacity=96)
PROMPTS = [[5 + 61 * first + place for place in range(40)] for first in range(3)]
FIXED = "abc"  # more than there are places; the fourth name is loaded from any of their folders in turn


def asked(name: str, prompt: int) -> LLMGenerationRequest:
    return LLMGenerationRequest(
        (Request(lora_weights_name=name, ignore_eos=True),), pre_tokenized_input_ids=[PROMPTS[prompt]],
        sampling=SamplingParameters(temperature=0), max_generate_length=8,
    )  # fmt: skip


@pytest.mark.parametrize("each", [6, pytest.param(150, marks=pytest.mark.slow)])
def test_everybody_gets_the_answer_of_an_adapter_that_was_loaded(tmp_path, each):
    """One of them, from its first token to its last, and with its own prefixes."""
    path = build_engine(checkpoint("llama"), tmp_path / "engine", limits=LIMITS, lora=AdapterLimits(4, 2))
    form = AdapterFormat.from_config(open_engine_directory(path).config.extra)
    folders = {name: write_adapter(tmp_path / name, form, 3, place) for place, name in enumerate(FIXED)}
    with LLMInferenceRuntime(path, threads=1, lora_weights=folders) as plain:
        wanted = {
            (name, prompt): answer(plain, asked(name, prompt)).output_ids[0]
            for name in ("", *FIXED)
            for prompt in range(len(PROMPTS))
        }
    runtime = LLMInferenceRuntime(
        path, threads=1, lora_weights=folders, context_cache=ContextCacheConfig(1 << 20), join_chunk=8
    )
    engine = RequestEngine(runtime, RequestEngineConfig(max_batch_size=4))
    wrong: list[object] = []
    answered: list[str] = []
    over = threading.Event()

    def client(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(each):
            name, prompt = generator.choice(["", *FIXED, "changing"]), generator.randrange(len(PROMPTS))
            try:
                response = engine.submit(asked(name, prompt)).get(3 * WAIT)
            except RequestError as error:
                if error.code is not RefusalCode.UNKNOWN_ADAPTER or name != "changing":
                    wrong.append(error)
                continue
            possible = [wanted[one, prompt] for one in (FIXED if name == "changing" else (name,))]
            if response.finish_reasons != [FinishReason.LENGTH] or response.output_ids[0] not in possible:
                wrong.append((name, prompt, response))
            answered.append(name)

    def changer() -> None:
        generator = random.Random(0)
        while not over.wait(0.001):
            try:
                if generator.random() < 0.8:
                    runtime.rank.load_lora_weights("changing", folders[generator.choice(FIXED)])
                else:
                    runtime.rank.unload_lora_weights("changing")
            except (MisuseError, RequestError):  # in use, or not there
                pass
            except EdgeLLMError as error:
                wrong.append(error)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    changing = threading.Thread(target=changer)
    try:
        for thread in (*threads, changing):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        over.set()
        changing.join(WAIT)
        assert engine.shutdown(timeout=WAIT)
        audit(runtime.rank)
        runtime.close()
    assert not wrong and answered
