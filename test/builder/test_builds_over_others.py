"""What stands at a build's place is skipped, replaced or left alone, and nothing of others is lost."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from build_places import LIMITS, content, siblings

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.build_check import check_build
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import EngineDirectoryError


def test_a_rebuild_of_the_same_thing_is_skipped(checkpoint, place):
    build_engine(checkpoint, place, limits=LIMITS)
    inode = place.stat().st_ino
    stages = []
    build_engine(checkpoint, place, limits=LIMITS, progress=lambda state: stages.append(state.stage))
    assert place.stat().st_ino == inode
    assert stages[-1] == "already built"


def test_a_damaged_directory_is_built_again(checkpoint, place):
    build_engine(checkpoint, place, limits=LIMITS)
    for damage in (b"", bytes((place / "llm.onnx.data").stat().st_size)):
        (place / "llm.onnx.data").write_bytes(damage)
        build_engine(checkpoint, place, limits=LIMITS)
        open_engine_directory(place)
        assert (place / "llm.onnx.data").read_bytes() != damage


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_an_engine_without_calibration_is_not_taken_for_one_with(checkpoint, place, precision):
    stages = []
    for calibrate in (True, True, False):
        build_engine(
            checkpoint, place, precision=precision, limits=LIMITS, calibrate=calibrate,
            progress=lambda state: stages.append(state.stage),
        )  # fmt: skip
    assert stages.count("already built") == 1 and stages[-1] != "already built"


@pytest.mark.parametrize("change", [{"precision": "int8"}, {"limits": BuilderLimits(1, 16, 32)}], ids=str)
def test_other_settings_replace_the_directory(checkpoint, place, change):
    build_engine(checkpoint, place, limits=LIMITS)
    before = open_engine_directory(place).manifest.fingerprint
    build_engine(checkpoint, place, **{"limits": LIMITS, **change})
    assert open_engine_directory(place).manifest.fingerprint != before
    assert siblings(place) == ["engine"]


def test_other_weights_replace_the_directory(place, tmp_path):
    for seed in (1, 2):
        folder = write_random_llama_checkpoint(tmp_path / f"seed{seed}", seed=seed)
        build_engine(folder, place, limits=LIMITS)
        found = open_engine_directory(place).manifest.fingerprint
    assert (
        found
        != open_engine_directory(
            build_engine(tmp_path / "seed1", tmp_path / "again", limits=LIMITS)
        ).manifest.fingerprint
    )


def test_other_files_are_never_overwritten(checkpoint, place):
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    with pytest.raises(EngineDirectoryError, match="no engine directory"):
        build_engine(checkpoint, place, limits=LIMITS)
    assert (place / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("manifest", ['{"name": "a web page"}', '{"fingerprint": "x", "files": []}', "[1]", "", "{"])
def test_a_folder_with_a_manifest_of_another_kind_is_left_alone(checkpoint, place, manifest):
    place.mkdir()
    (place / "manifest.json").write_text(manifest)
    (place / "thesis.txt").write_text("years of work")
    with pytest.raises(EngineDirectoryError, match="no engine directory"):
        build_engine(checkpoint, place, limits=LIMITS)
    assert (place / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", ["notes.txt", "adapters/mine/adapter_model.safetensors", "visual/extra", "a.engineer"])
@pytest.mark.parametrize("check", [False, True], ids=["build", "check"])
def test_files_that_were_put_into_an_engine_directory_are_not_lost_with_it(checkpoint, place, name, check):
    build_engine(checkpoint, place, limits=LIMITS)
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text("mine")
    with pytest.raises(EngineDirectoryError, match=re.escape(f"{name!r}, which no build put there")):
        (check_build if check else build_engine)(
            checkpoint, place, precision="int8", limits=LIMITS, lowering="onnxruntime"
        )
    assert (place / name).read_text() == "mine" and siblings(place) == ["engine"]


def test_a_read_only_directory_is_not_replaced(checkpoint, place, monkeypatch):
    build_engine(checkpoint, place, limits=LIMITS)
    before, real = content(place), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place and real(path, mode))
    with pytest.raises(EngineDirectoryError, match="it is read-only"):
        build_engine(checkpoint, place, limits=BuilderLimits(1, 16, 32))
    assert content(place) == before and siblings(place) == ["engine"]


def test_compiled_plans_go_with_the_directory_that_they_belong_to(checkpoint, place):
    build_engine(checkpoint, place, limits=LIMITS)
    for name in ("llm.engine", "llm.engine.json", "llm.timing.cache", ".llm.engine.k3x"):
        (place / name).write_text("")
    build_engine(checkpoint, place, limits=BuilderLimits(1, 16, 32))
    assert not list(place.glob("*llm.engine*"))


def test_a_file_or_link_in_the_way_is_refused(checkpoint, place, tmp_path):
    place.write_text("x")
    with pytest.raises(EngineDirectoryError, match="not a folder"):
        build_engine(checkpoint, place, limits=LIMITS)
    place.unlink()
    place.symlink_to(tmp_path)
    with pytest.raises(EngineDirectoryError, match="not a folder"):
        build_engine(checkpoint, place, limits=LIMITS)


def test_an_empty_folder_is_used(checkpoint, place):
    place.mkdir()
    build_engine(checkpoint, place, limits=LIMITS)
    open_engine_directory(place)
