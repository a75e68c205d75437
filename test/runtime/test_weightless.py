"""Engines that leave their weights in the checkpoint: the same numbers, a small directory, and no other checkpoint."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from family_engines import LIMITS, checkpoint
from runtime_helpers import answer
from safetensors.numpy import load_file, save_file
from test_in_flight_batching import given_ids

from edgellm_ros.backends.fake import FakeBackend
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_checkpoint
from edgellm_ros.cli.main import main
from edgellm_ros.errors import BackendError, CheckpointError, EngineDirectoryError
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime

FAMILIES = ("llama", "llama-3", "gemma3", "qwen3")  # tied; biases and a head; shifted norms; normalised heads


def answers(path, folder=None) -> list[object]:
    with LLMInferenceRuntime(path, threads=1, checkpoint_dir=folder) as runtime:
        asked = given_ids(0, 1, 2, 3)
        asked.num_logprobs = 2
        response = answer(runtime, asked)
        return [response.output_ids, response.logprobs]


def check_equal_to_an_engine_with_weights(folder, tmp_path) -> None:
    whole = build_engine(folder, tmp_path / "whole", limits=LIMITS)
    light = build_engine(folder, tmp_path / "light", limits=LIMITS, weightless=True)
    assert answers(light, folder) == answers(whole)
    names = {path.name for path in light.iterdir()}
    assert not names & {"llm.onnx.data", "embedding.safetensors"} and "llm.onnx" in names
    size = [sum(path.stat().st_size for path in directory.rglob("*.onnx*")) for directory in (light, whole)]
    assert size[0] < size[1] / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_without_weights_answers_as_one_with_them(family, tmp_path):
    check_equal_to_an_engine_with_weights(checkpoint(family), tmp_path)


@pytest.mark.parametrize("form", ["float16", "bfloat16", "shards"])
def test_checkpoints_of_every_form_serve(form, tmp_path):
    folder = shutil.copytree(checkpoint("llama-3"), tmp_path / "checkpoint")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if form == "float16":
        save_file({name: values.astype(np.float16) for name, values in tensors.items()}, folder / "model.safetensors")
    elif form == "bfloat16":
        save_bfloat16(tensors, folder / "model.safetensors")
    else:
        names = sorted(tensors)
        shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for file, part in shards.items():
            save_file({name: tensors[name] for name in part}, folder / file)
        index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_equal_to_an_engine_with_weights(folder, tmp_path)


def save_bfloat16(tensors, path) -> None:
    """The library's own writer knows no bfloat16."""
    header, data = {}, b""
    for name, values in tensors.items():
        content = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_the_wrong_weights_are_refused_with_a_sentence(tmp_path):
    folder = checkpoint("llama")
    light = build_engine(folder, tmp_path / "light", limits=LIMITS, weightless=True)
    whole = build_engine(folder, tmp_path / "whole", limits=LIMITS)
    other = write_random_checkpoint(tmp_path / "other", json.loads((checkpoint("qwen3") / "config.json").read_text()))
    for path, given, sentence in (
        (light, None, "holds no weights and no checkpoint_dir is given"),
        (light, other, "is not the checkpoint that"),
        (light, tmp_path, "has neither model.safetensors nor"),
        (whole, folder, "holds its own weights and checkpoint_dir is"),
    ):
        with pytest.raises(EngineDirectoryError, match=sentence):
            LLMInferenceRuntime(path, checkpoint_dir=given)
    with pytest.raises(BackendError, match="takes no weights from a checkpoint"):
        LLMInferenceRuntime(light, checkpoint_dir=folder, backend=FakeBackend())


@pytest.mark.parametrize(
    "options", [{"precision": "int8"}, {"lowering": "tensorrt_legacy"}], ids=["int8", "turned matrices"]
)
def test_weights_that_are_stored_otherwise_cannot_be_left_out(options, tmp_path):
    with pytest.raises(CheckpointError, match="wants precision fp32 and the lowering onnxruntime"):
        build_engine(checkpoint("llama"), tmp_path / "engine", limits=LIMITS, weightless=True, **options)


@pytest.mark.todays_graphs
def test_the_command_line_builds_and_runs_one(tmp_path, capsys):
    folder, path = checkpoint("llama"), tmp_path / "engine"
    limits = ("--max-batch", "1", "--max-input", "32", "--max-kv", "48")
    assert main(["build", str(folder), str(path), "--weightless", *limits]) == 0
    given = ["generate", str(path), "--input-ids", "5,6,7", "--max-tokens", "4", "--json", "--ignore-eos"]
    capsys.readouterr()
    assert main([*given, "--checkpoint", str(folder)]) == 0
    assert len(json.loads(capsys.readouterr().out)["output_ids"]) == 4
    assert main(given) == 2
