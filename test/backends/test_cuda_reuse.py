"""Prefix reuse on a pretended GPU: blocks stay on the device, and answers are those of a run without."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from fake_cuda import FakeDriver
from pretend_gpu import compile_pretended, pretend_backend

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.errors import BackendError
from edgellm_ros.runtime.block_store import BLOCK_OVERHEAD
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.rank_runtime import LLMRankRuntime
from edgellm_ros.runtime.request import LLMGenerationRequest, LLMGenerationResponse, Request, SamplingParameters

FIRST = [5 + 7 * index % 200 for index in range(44)]
SECOND = [*FIRST[:36], 9, 8, 7, 6]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reuse")
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", hidden_size=64, seed=4)
    return build_engine(checkpoint, folder / "engine", limits=BuilderLimits(2, 64, 96), lowering="tensorrt_legacy")


def run(rank: LLMRankRuntime, ids: list[int], tokens: int = 6) -> LLMGenerationResponse:
    request = LLMGenerationRequest(
        [Request(ignore_eos=True)], SamplingParameters(temperature=0.0), tokens, pre_tokenized_input_ids=[ids]
    )
    response = LLMGenerationResponse()
    assert rank.handle_request(request, response), rank.last_refusal
    return response


@pytest.mark.parametrize("library", ["onnxruntime", "tensorrt"])
def test_answers_on_a_gpu_are_equal_with_and_without_reuse(engine: Path, library: str) -> None:
    if library == "tensorrt":
        compile_pretended(engine)
    answers = []
    for config in (None, ContextCacheConfig()):
        backend = pretend_backend(library)
        rank = LLMRankRuntime(engine, backend=backend, prefill_chunk=8, context_cache=config)
        answers.append([run(rank, ids) for ids in (FIRST, FIRST, SECOND)])
        rank.close()
        backend.close()
    assert [response.output_ids for response in answers[0]] == [response.output_ids for response in answers[1]]
    assert [response.reused_token_counts[0] for response in answers[1]] == [0, 28, 24]


def test_blocks_take_device_memory_within_the_budget_and_give_it_back(engine: Path) -> None:
    backend = pretend_backend()
    rank = LLMRankRuntime(engine, backend=backend, prefill_chunk=8, context_cache=ContextCacheConfig(0))
    run(rank, FIRST)
    assert backend.memory()["blocks"] == 0
    block = rank.executor.cache.bytes_per_position * 16
    rank.close()
    config = ContextCacheConfig(3 * (block + BLOCK_OVERHEAD))
    rank = LLMRankRuntime(engine, backend=backend, prefill_chunk=8, context_cache=config)
    for index in range(5):
        run(rank, [index, *FIRST], 20)
        assert backend.memory()["blocks"] == 3 * block
    assert rank.get_context_cache_metrics().evicted_records > 3
    rank.close()
    del rank
    assert backend.memory()["blocks"] == 0
    backend.close()


def test_a_lost_device_poisons_the_cache(engine: Path) -> None:
    driver = FakeDriver()
    backend = pretend_backend(driver=driver)
    rank = LLMRankRuntime(engine, backend=backend, prefill_chunk=8, context_cache=ContextCacheConfig())
    run(rank, FIRST)

    def fail(*_: object, **__: object) -> None:
        raise BackendError("the GPU failed.")

    rank.executor.cache.import_block = fail
    rank._reuse.context_cache._synchronize = fail
    response = run(rank, SECOND)
    assert "load the engine again" in response.messages[0]
    assert not rank.handle_request(
        LLMGenerationRequest([Request()], pre_tokenized_input_ids=[FIRST]), LLMGenerationResponse()
    )
    rank.close()
    backend.close()
