"""``edgellm build`` and ``edgellm info`` from the command line: limits, words, and what is refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from build_places import siblings

from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory


def run_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "edgellm_ros.cli.main", *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command_builds_and_describes(checkpoint, place):
    built = run_command("build", checkpoint, place, "--max-batch", 3, "--max-input", 20, "--max-kv", 50)
    assert built.returncode == 0, built.stderr
    assert str(place) in built.stdout
    assert (
        "built already"
        in run_command("build", checkpoint, place, "--max-batch", 3, "--max-input", 20, "--max-kv", 50).stdout
    )
    found = json.loads(run_command("info", place, "--json").stdout)
    assert found["config"]["builder_config"] == {
        "max_batch_size": 3, "max_input_len": 20, "max_kv_cache_capacity": 50,
    }  # fmt: skip
    assert found["manifest"]["precision"] == "fp32"
    shown = run_command("info", place).stdout
    assert "batch 3, prompt 20 tokens" in shown
    assert "llm.onnx.data" in shown


def test_default_limits_follow_what_the_model_was_trained_for(place, tmp_path):
    short = write_random_llama_checkpoint(tmp_path / "short", max_position_embeddings=512)
    assert run_command("build", short, place).returncode == 0
    assert open_engine_directory(place).config.limits == BuilderLimits(4, 512, 512)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        (["--max-batch", "1"], (1, 512, 512)),
        (["--max-input", "100"], (4, 100, 512)),
        (["--max-kv", "200"], (4, 200, 200)),
        (["--max-kv", "200", "--max-batch", "2"], (2, 200, 200)),
    ],
    ids=str,
)
def test_limits_that_nobody_gave_follow_the_model_too(tmp_path, place, options, limits):
    short = write_random_llama_checkpoint(tmp_path / "short", max_position_embeddings=512)
    assert main(["build", str(short), str(place), *options]) == 0
    assert open_engine_directory(place).config.limits == BuilderLimits(*limits)


REFUSED = {
    "missing": (["nowhere"], "nowhere"),
    "precision": (["CHECKPOINT", "--precision", "int3"], "int3"),
    "capacity-beyond-training": (["CHECKPOINT", "--max-kv", "9000"], "9000"),
    "prompt-beyond-cache": (["CHECKPOINT", "--max-kv", "100", "--max-input", "200"], "200"),
    "batch": (["CHECKPOINT", "--max-batch", "0"], "max_batch_size"),
    "capacity-below-zero": (["CHECKPOINT", "--max-kv", "-1"], "max_kv_cache_capacity is -1"),
    "batch-too-large": (["CHECKPOINT", "--max-batch", "1000"], "max_batch_size"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_end_with_code_2_and_one_line(checkpoint, place, arguments, said):
    source, *options = [checkpoint if word == "CHECKPOINT" else word for word in arguments]
    result = run_command("build", source, place, *options)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert siblings(place) == []
