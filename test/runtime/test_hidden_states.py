"""Hidden states: the numbers, whose they are, and for how long."""

from __future__ import annotations

import numpy as np
import pytest
from family_engines import LIMITS, checkpoint, reference
from runtime_helpers import answer, request

from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import CheckpointError, MisuseError
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.hidden_states import StaleViewError
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Request,
    SamplingParameters,
)
from edgellm_ros.runtime.streaming import StreamChannel

PROMPTS = [[5, 9, 17, 200, 31, 8, 90, 121, 44], [7, 3], [250, 11, 11, 60, 5]]
FAMILIES = ("llama", "gemma3", "qwen3")  # norms before, four norms and scaled embeddings, normalised heads


@pytest.fixture(scope="module", params=FAMILIES)
def opened(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hidden") / "engine"
    path = build_engine(checkpoint(request.param), folder, limits=LIMITS, hidden_states=(2, 4))
    with LLMInferenceRuntime(path, threads=1, prefill_chunk=4) as runtime:
        yield runtime, reference(request.param)


def prompts(*which: int, layer: int = 2) -> LLMGenerationRequest:
    return LLMGenerationRequest(
        (Request(ignore_eos=True),) * len(which), sampling=SamplingParameters(temperature=0), max_generate_length=3,
        pre_tokenized_input_ids=[PROMPTS[index] for index in which], accept_hidden_layer=layer,
    )  # fmt: skip


def ask(runtime: LLMInferenceRuntime, asked: LLMGenerationRequest) -> LLMGenerationResponse:
    response = LLMGenerationResponse()
    assert runtime.handle_request(asked, response, output_thinker_embeddings=True), runtime.last_refusal
    return response


@pytest.mark.parametrize("layer", [2, 4])
def test_states_of_prompts_are_those_of_an_independent_forward_pass(opened, layer):
    runtime, wanted = opened
    plain = answer(runtime, prompts(0, 1, 2))
    assert ask(runtime, prompts(0, 1, 2, layer=layer)).output_ids == plain.output_ids
    rank = runtime.rank
    assert rank.get_base_model_prefill_length() == 9
    assert rank.get_base_model_input_token_ids() == PROMPTS
    for kept in (0, layer):
        values = rank.get_base_model_hidden_states(kept).numpy()
        assert values.shape == (3, 9, 40) and values.dtype == np.float32
        for row, ids in zip(values, PROMPTS, strict=True):
            np.testing.assert_allclose(row[: len(ids)], wanted.hidden_states(ids)[kept], rtol=1e-3, atol=1e-3)
            assert not row[len(ids) :].any()
    other = 6 - layer
    assert rank.get_base_model_hidden_states(other) is None


def test_a_view_never_shows_another_request(opened):
    runtime, _ = opened
    rank = runtime.rank
    ask(runtime, prompts(0))
    view, embeddings = rank.get_base_model_hidden_states(2), rank.get_base_model_hidden_states(0)
    assert view.shape == (1, 9, 40)
    ask(runtime, prompts(1))
    for stale in (view, embeddings):
        with pytest.raises(StaleViewError, match="earlier request"):
            stale.numpy()
    fresh = rank.get_base_model_hidden_states(2)
    assert fresh.shape == (1, 2, 40)
    # A request that does not ask, and one that is refused, end its life too; one that overlaps does not.
    generation = rank.begin_generation(runtime.prepare(prompts(2)), LLMGenerationResponse(),
                                       output_thinker_embeddings=True)  # fmt: skip
    kept = rank.get_base_model_hidden_states(2)
    assert rank.begin_generation(runtime.prepare(prompts(0)), LLMGenerationResponse()) is None
    assert kept.shape == (1, 5, 40)
    generation.close()
    assert kept.shape == (1, 5, 40)
    assert rank.begin_generation(LLMGenerationRequest(), LLMGenerationResponse()) is None
    with pytest.raises(StaleViewError):
        kept.numpy()
    assert rank.get_base_model_hidden_states(2) is None
    assert rank.get_base_model_prefill_length() == 0 and rank.get_base_model_input_token_ids() == []


def test_a_prompt_whose_states_are_wanted_is_computed_whole(tmp_path):
    """What is reused has none; it is kept for those who want none."""
    path = build_engine(checkpoint("llama"), tmp_path / "engine", limits=LIMITS, hidden_states=(2, 4))
    ids = np.random.default_rng(4).integers(3, 250, LIMITS.max_input_len).tolist()
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True),), sampling=SamplingParameters(temperature=0), max_generate_length=2,
        pre_tokenized_input_ids=[ids], accept_hidden_layer=2,
    )  # fmt: skip
    with LLMInferenceRuntime(path, threads=1, context_cache=ContextCacheConfig()) as runtime:
        assert ask(runtime, asked).reused_token_counts == [0]
        assert answer(runtime, asked).reused_token_counts[0] > 0
        assert ask(runtime, asked).reused_token_counts == [0]
        (values,) = runtime.rank.get_base_model_hidden_states(2).numpy()
    np.testing.assert_allclose(values, reference("llama").hidden_states(ids)[2], rtol=1e-3, atol=1e-3)


def test_a_prompt_that_did_not_run_to_its_end_has_no_states(opened, monkeypatch):
    """Zeros in their place would look like padding."""
    runtime, _ = opened
    channel, run = StreamChannel(), runtime.rank.executor.prefill

    def cancelling(*arguments, **options):
        channel.cancel()
        return run(*arguments, **options)

    monkeypatch.setattr(runtime.rank.executor, "prefill", cancelling)
    asked = prompts(0)
    asked.stream_channels = [channel]
    assert ask(runtime, asked).finish_reasons == [FinishReason.CANCELLED]
    assert runtime.rank.get_base_model_hidden_states(2) is None


@pytest.mark.parametrize("layer", [0, 1, 5])
def test_a_layer_that_the_engine_does_not_give_is_misuse(opened, layer):
    runtime, _ = opened
    with pytest.raises(MisuseError, match=f"accept_hidden_layer is {layer}, .* want one of 2, 4"):
        ask(runtime, prompts(0, layer=layer))
    assert answer(runtime, prompts(0)).output_ids


@pytest.mark.parametrize("layer", [0, 5, True])
def test_the_builder_knows_how_many_layers_there_are(tmp_path, layer):
    with pytest.raises(CheckpointError, match="the model has layers 1 to 4"):
        build_engine(checkpoint("llama"), tmp_path / "engine", limits=LIMITS, hidden_states=(layer,))


def test_an_engine_without_them_says_how_to_get_them(tmp_path):
    path = build_engine(checkpoint("llama"), tmp_path / "engine", limits=LIMITS)
    with LLMInferenceRuntime(path, threads=1) as runtime, pytest.raises(MisuseError, match="--hidden-states LAYER"):
        runtime.rank.begin_generation(runtime.prepare(request("hi")), LLMGenerationResponse(),
                                      output_thinker_embeddings=True)  # fmt: skip
