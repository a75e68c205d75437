"""One walk over everything that a rank runtime and its sessions offer."""

from __future__ import annotations

import pytest
from runtime_helpers import answer, drain, fake_runtime, item, request

from edgellm_ros.backends.fake import FakeBackend
from edgellm_ros.errors import EdgeLLMError, MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime.artifacts import ModelArtifacts
from edgellm_ros.runtime.boundary import AdmitDecision, SlotSeed
from edgellm_ros.runtime.metrics import MultimodalMetrics, SpecDecodeGenerationMetrics
from edgellm_ros.runtime.parallel import DIMENSIONS, ParallelMapping
from edgellm_ros.runtime.rank_runtime import LLMRankRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.vision.pruner import VisualPrunerConfig


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("surface") / "engine"
    with fake_runtime(path) as runtime:
        return path, runtime.prepare(request("hi"))


@pytest.fixture(params=["from_directory", "from_artifacts"])
def rank(request, directory):
    path = directory[0]
    options = {"mapping": {"world_size": 1}, "backend": FakeBackend(), "threads": 1, "prefill_chunk": 16}
    if request.param == "from_directory":
        unused = ("tokenizer", "chat_template", "lora_weights", "drafting_config", "checkpoint_dir",
                  "draft_checkpoint_dir", "context_cache")  # fmt: skip
        made = LLMRankRuntime(path, None, **dict.fromkeys(unused), **options)
    else:
        made = LLMRankRuntime.from_artifacts(ModelArtifacts.load(path), **options)
    yield made
    made.close()


def test_the_whole_surface(rank, directory):
    prepared = directory[1]
    # what it is
    assert rank.max_batch_size() == 4
    assert rank.has_draft_model() is False and rank.supports_seated_admission() is True
    assert rank.get_speculative_decoding_strategy_name() == "vanilla"
    assert rank.get_embedding_table().shape[0] == rank.config.vocab_size
    # nothing recorded yet
    assert rank.get_spec_decode_generation_metrics() == SpecDecodeGenerationMetrics()
    assert rank.get_multimodal_metrics() == MultimodalMetrics()
    assert rank.get_prefill_metrics().total_runs == rank.get_generation_metrics().total_runs == 0
    assert rank.get_base_model_hidden_states(0) is None and rank.get_base_model_prefill_length() == 0
    assert rank.get_base_model_input_token_ids() == []
    assert rank.get_context_cache_metrics() is None and rank.get_stage_times() == {}
    with pytest.raises(MisuseError, match="accept_hidden_layer is 0"):
        rank.begin_generation(prepared, LLMGenerationResponse(), output_thinker_embeddings=True)
    # settings without a runner: visible, without effect
    rank.set_action_noise_seed(7)
    assert rank.action_noise_seed == 7
    rank.set_visual_pruner_config({"enabled": True, "reduction_ratio": 0.5})
    assert rank.visual_pruner_config == VisualPrunerConfig(True, reduction_ratio=0.5)
    assert rank.visual_pruner_active is False
    assert rank.capture_decoding_cuda_graph() is True
    assert rank.gen_and_save_system_prompt_kv_cache("") is True
    assert rank.gen_and_save_system_prompt_kv_cache("You move an arm.", "nobody's") is False
    assert rank.last_refusal.code is RefusalCode.UNKNOWN_ADAPTER
    assert rank.gen_and_save_system_prompt_kv_cache("You move an arm.") is True
    rank.warm_up()
    assert rank.get_prefill_metrics().total_runs == rank.get_generation_metrics().total_runs == 0
    # a whole request
    calls, hooked, response = [], [], LLMGenerationResponse()
    assert rank.handle_request(
        prepared, response, output_thinker_embeddings=False, parallel_rank=0,
        token_broadcast=lambda values: calls.append(list(values)) or True, boundary_hook=hooked.append,
    )  # fmt: skip
    assert response.output_texts == ["Hello from the fake engine."] and response.finish_reasons == [FinishReason.END_ID]
    assert calls and all(isinstance(hook, GenerationSession) for hook in hooked)
    # the same by hand, with one who joins as a request and one as a sequence
    second, stepped = StreamChannel(), LLMGenerationResponse()
    generation = rank.begin_generation(prepared, stepped, founder_request_id=41)
    assert generation.context.sequences[0].request_id == 41
    session = GenerationSession(rank, generation)
    assert session.prime_from_prefill() and not session.finished() and session.resident_count() == 1
    assert session.admit_request(prepared, 1, 42) is AdmitDecision.ADMITTED
    ids = tuple(prepared.pre_tokenized_input_ids[0])
    assert session.admit_sequence(SlotSeed(ids, 2, stream_channel=second)) is AdmitDecision.ADMITTED
    while not session.finished():
        assert session.advance()
    taken = session.take_completed_at_or_above(1)
    assert sorted(taken) == [1, 2]
    assert session.materialize_result(taken[1]).output_texts == ["Hello from the fake engine."]
    assert rank.finish_generation(generation, prepared, stepped)
    assert (
        stepped.output_texts == response.output_texts
        and "".join(c.text for c in drain(second)) == "Hello from the fake engine."
    )
    # everybody was counted when it ended, and knows when
    assert rank.get_generation_metrics().total_runs == 4
    times = stepped.times[0]
    assert 0 < times.prefill_start <= times.first_token <= times.last_token
    assert rank.last_refusal is None


@pytest.mark.parametrize("option", ["lora_weights", "drafting_config", "draft_checkpoint_dir"])
def test_options_beyond_this_engine_are_refused_by_name(directory, option):
    with pytest.raises(EdgeLLMError, match=option) as refused:
        LLMRankRuntime(directory[0], **{option: {"x": "y"}})
    assert refused.value.code is RefusalCode.UNSUPPORTED


@pytest.mark.parametrize(
    ("mapping", "code", "words"),
    [
        ({"world_size": 2, "tensor_parallel_size": 2}, RefusalCode.UNSUPPORTED, "world_size 2; this version runs one"),
        (ParallelMapping(4, 1, 2, expert_parallel_size=2), RefusalCode.UNSUPPORTED, "world_size 4"),
        ({"world_size": 3}, RefusalCode.BAD_PARAMETER, "dimensions give 1"),
        ({"rank": 1}, RefusalCode.BAD_PARAMETER, "rank is 1; want a whole number from 0 to 0"),
        ({"launch": "fork"}, RefusalCode.BAD_PARAMETER, "want one of thread, process"),
        ({"world": 1}, RefusalCode.BAD_PARAMETER, "mapping has 'world'; want some of"),
        ({"tensor_parallel_size": True}, RefusalCode.BAD_PARAMETER, "tensor_parallel_size is True"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mapping_is_checked_and_several_ranks_refused(directory, mapping, code, words):
    with pytest.raises(EdgeLLMError, match=words) as refused:
        LLMRankRuntime(directory[0], mapping=mapping, backend=FakeBackend())
    assert refused.value.code is code


def test_ranks_and_coordinates_determine_each_other():
    places = set()
    for rank in range(24):
        mapping = ParallelMapping(24, rank, 2, 3, 2, 2)
        places.add(tuple(mapping.coordinate(dimension) for dimension in DIMENSIONS))
    assert len(places) == 24 and max(places) == (1, 1, 2, 1)
    assert ParallelMapping(24, 1, 2, 3, 2, 2).coordinate("tensor") == 1


@pytest.mark.parametrize(
    "config",
    [{"algorithm": "random"}, {"reduction_ratio": 1.0}, {"reduction_ratio": -0.1}, {"ratio": 0.5}, {"enabled": 1},
     {"min_visual_tokens": 0}],
    ids=str,
)  # fmt: skip
def test_a_bad_pruner_configuration_leaves_the_old_one(rank, config):
    rank.set_visual_pruner_config(VisualPrunerConfig(True))
    with pytest.raises(EdgeLLMError, match="want"):
        rank.set_visual_pruner_config(config)
    assert rank.visual_pruner_config == VisualPrunerConfig(True)


@pytest.mark.parametrize("seed", [1 << 31, -(1 << 31) - 1, 1 << 64, 1.5, "x", True])
def test_a_bad_noise_seed_is_refused(rank, seed):
    with pytest.raises(RequestError, match="the noise seed is"):
        rank.set_action_noise_seed(seed)
    assert rank.action_noise_seed is None


@pytest.mark.parametrize("seed", [0, -1, (1 << 31) - 1, -(1 << 31)])
def test_every_int32_is_a_noise_seed(rank, seed):
    rank.set_action_noise_seed(seed)
    assert rank.action_noise_seed == seed


def test_recording_can_be_switched_off(rank, monkeypatch):
    monkeypatch.setenv("EDGELLM_DISABLE_CUDA_GRAPH", "1")
    monkeypatch.setattr(rank.executor, "capture_decode_steps", lambda: pytest.fail("recorded"))
    assert rank.capture_decoding_cuda_graph() is True


def test_an_adapter_nobody_loaded_is_refused_for_its_item(tmp_path):
    with fake_runtime(tmp_path / "engine") as runtime:
        asked = request(item("a"), item("b", lora_weights_name="style"))
        assert not runtime.handle_request(asked, LLMGenerationResponse())
        assert runtime.last_refusal.code is RefusalCode.UNKNOWN_ADAPTER and "'style'" in runtime.last_refusal.message
        assert answer(runtime, request(item("a", lora_weights_name="")))
