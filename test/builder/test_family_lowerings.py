"""Every family under every lowering gives the numbers of an independent forward pass."""

from __future__ import annotations

import onnx
import pytest
from family_engines import LIMITS, LOWERINGS, ROWS, TOLERANCE, distance, distance_to_reference, engine, reference
from reference_decoder import ReferenceDecoder
from reference_llama import read_folder
from seam_runner import SeamRunner, ragged_logits
from tiny_families import TINY_FAMILIES, WINDOW

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_checkpoint
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import BackendError, CheckpointError

STEPS = 12


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_ragged_chunks_and_decode_equal_the_reference(family, lowering):
    assert distance_to_reference(engine(family, lowering), family) < TOLERANCE


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_greedy_answers_of_a_ragged_batch_are_the_same_under_every_lowering(family):
    answers = {}
    for lowering in LOWERINGS:
        runner = SeamRunner(engine(family, lowering))
        answers[lowering] = runner.greedy(ROWS, STEPS)
        runner.close()
    ids, wanted = list(ROWS[2]), []
    for _ in range(STEPS):
        wanted.append(int(reference(family).logits(ids)[-1].argmax()))
        ids.append(wanted[-1])
    assert answers["tensorrt"] == answers["tensorrt_legacy"] == answers["onnxruntime"]
    assert answers["onnxruntime"][2] == wanted


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_prompt_read_token_by_token_equals_the_prompt_at_once(lowering):
    whole, pieces = SeamRunner(engine("gemma3", lowering)), SeamRunner(engine("gemma3", lowering))
    (wanted,) = whole.run([ROWS[1]])
    found = [pieces.run([[token]])[0] for token in ROWS[1]]
    assert distance(found, [row[None] for row in wanted]) < TOLERANCE
    whole.close()
    pieces.close()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_cache_row_can_be_moved_and_its_blocks_exported(lowering):
    runner = SeamRunner(engine("qwen3", lowering))
    runner.run([ROWS[0][:9], ROWS[1][:6]])
    runner.cache.copy_row(0, 2, 9)
    block = runner.cache.export_block(0, 0, 4)
    runner.cache.import_block(1, 0, block)
    runner.cache.import_block(1, 4, runner.cache.export_block(2, 4, 5))
    runner.past = [9, 9, 9]
    first, second, third = runner.run([[17]] * 3)
    assert distance([second, third], [first, first]) < 1e-6
    runner.close()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_cache_filled_to_its_last_position_still_answers_right(lowering):
    runner, capacity = SeamRunner(engine("gemma2", lowering), rows=1), 48
    ids = (ROWS[0] + ROWS[1] + ROWS[2])[:capacity]
    runner.run([ids[:32]])
    found = [runner.run([ids[32:47]])[0], runner.run([ids[47:]])[0]]
    assert distance(found, [reference("gemma2").logits(ids)[32:47], reference("gemma2").logits(ids)[47:]]) < TOLERANCE
    runner.close()


def test_a_chunk_beyond_a_cache_of_fixed_size_is_refused():
    runner = SeamRunner(engine("llama", "tensorrt"), rows=1)
    runner.run([ROWS[0]])
    with pytest.raises(BackendError, match="failed while running"):
        runner.run([ROWS[0] + ROWS[1]])
    runner.close()


@pytest.mark.parametrize("lowering", ["tensorrt", "tensorrt_legacy"])
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_graph_for_tensorrt_is_sound_onnx_of_standard_operators(family, lowering):
    path = engine(family, lowering) / "llm.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path, load_external_data=False)
    assert {(row.domain, row.version) for row in model.opset_import} == {("", 24 if lowering == "tensorrt" else 17)}
    operators = {node.op_type for node in model.graph.node}
    native = {"TensorScatter", "RMSNormalization", "RotaryEmbedding"}
    assert native <= operators if lowering == "tensorrt" else not (native | {"Attention", "Gelu"}) & operators


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_attention_of_the_tensorrt_graph_has_an_explicit_mask_and_no_scale(family):
    graph = onnx.load(engine(family, "tensorrt") / "llm.onnx", load_external_data=False).graph
    for node in graph.node:
        if node.op_type == "Attention":
            assert len(node.input) == 4 and len(node.output) == 1
            assert {row.name: onnx.helper.get_attribute_value(row) for row in node.attribute} == {"scale": 1.0}
    caches = [row for row in graph.input if row.name.startswith("past_key_")]
    assert {row.type.tensor_type.shape.dim[2].dim_value for row in caches} == {48}


@pytest.mark.parametrize("family", ["qwen2-window", "gemma2", "gemma3"])
def test_the_window_is_told_to_the_runtime(family):
    assert open_engine_directory(engine(family, "onnxruntime")).config.extra["sliding_window"] == WINDOW
    runner = SeamRunner(engine(family, "onnxruntime"))
    assert runner.engine.capabilities.window == WINDOW
    runner.close()


@pytest.mark.parametrize("lowering", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_int8_weights_stay_near_the_reference(family, lowering):
    found = ragged_logits(engine(family, lowering, "int8"), ROWS)
    wanted = [reference(family).logits(ids) for ids in ROWS]
    assert 10 * TOLERANCE < distance(found, wanted) < 0.5


def test_a_head_size_that_one_engine_lacks_is_refused_at_the_build_and_built_for_another(tmp_path):
    settings = {**TINY_FAMILIES["llama"], "head_dim": 12}
    folder = write_random_checkpoint(tmp_path / "checkpoint", settings)
    with pytest.raises(CheckpointError, match="head_dim is 12; the lowering onnxruntime wants a multiple of 8"):
        build_engine(folder, tmp_path / "engine", limits=LIMITS)
    path = build_engine(folder, tmp_path / "engine", lowering="tensorrt", limits=LIMITS)
    wanted = ReferenceDecoder(*read_folder(folder))
    assert distance(ragged_logits(path, ROWS), [wanted.logits(ids) for ids in ROWS]) < TOLERANCE
