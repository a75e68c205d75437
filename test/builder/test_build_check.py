"""``edgellm build --check`` says what a build gives, to the byte, and leaves nothing behind."""

from __future__ import annotations

import re

import pytest
from tiny_families import TINY_FAMILIES

from edgellm_ros.builder import build as build_module
from edgellm_ros.builder import engine_directory
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.build_check import check_build
from edgellm_ros.builder.random_weights import write_random_checkpoint
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory

LIMITS = BuilderLimits(2, 16, 32)


@pytest.fixture
def checkpoint(tmp_path):
    return write_random_checkpoint(tmp_path / "checkpoint", TINY_FAMILIES["gemma3"])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_sizes_are_those_of_the_build(checkpoint, tmp_path, precision):
    settings = {"precision": precision, "limits": LIMITS, "lowering": "tensorrt"}
    found = check_build(checkpoint, tmp_path / "engine", **settings)
    assert not (tmp_path / "engine").exists()
    assert not found.replaces
    built = open_engine_directory(build_engine(checkpoint, tmp_path / "engine", **settings))
    assert found.files == built.manifest.files
    heads, size = built.config.kv_layers[0]
    assert found.caches == 2 * 4 * 32 * 2 * heads * size * (2 if precision == "fp16" else 4)
    assert check_build(checkpoint, tmp_path / "engine", **settings).replaces


def test_a_calibration_is_counted(checkpoint, tmp_path):
    plain, calibrated = (
        check_build(
            checkpoint, tmp_path / "e", precision="int8", limits=None, lowering="onnxruntime", calibrate=calibrate
        )
        for calibrate in (False, True)
    )
    assert calibrated.files["llm.onnx.data"] == plain.files["llm.onnx.data"]
    assert plain.passing == 0 < calibrated.passing
    assert plain.building < calibrated.building


def test_the_command_prints_and_writes_nothing(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build_module, "write_weights", None)
    place = tmp_path / "deep" / "engine"
    assert main(["build", "--check", str(checkpoint), str(place), "--max-kv", "64", "--max-batch", "3"]) == 0
    text = capsys.readouterr().out
    assert f"{place}: an engine directory of gemma3" in text
    assert "3 x 64 positions" in text
    assert re.search(r"to build it about \d+ MB of memory", text)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["nowhere", "engine"], "nowhere holds nothing"),
        (["checkpoint", "checkpoint/config.json"], "is not a folder"),
        (["checkpoint", "checkpoint/config.json/engine"], "no folder may be made in"),
        (["checkpoint", "checkpoint"], "no engine directory"),
        (["checkpoint", "engine", "--precision", "int7"], "precision is 'int7'"),
        (["checkpoint", "engine", "--max-kv", "4096"], "trained for 512 positions"),
    ],
    ids=["no checkpoint", "a file", "below a file", "other files", "precision", "limits"],
)
def test_what_could_not_be_built_is_one_sentence(checkpoint, tmp_path, capsys, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    before = sorted(str(file) for file in tmp_path.rglob("*"))
    assert main(["build", "--check", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(str(file) for file in tmp_path.rglob("*")) == before


def test_a_full_disk_is_known_before(checkpoint, tmp_path, capsys, monkeypatch):
    usage = engine_directory.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(engine_directory.shutil, "disk_usage", lambda path: usage)
    assert main(["build", "--check", str(checkpoint), str(tmp_path / "engine")]) == 2
    assert "has 0 MB free" in capsys.readouterr().err
