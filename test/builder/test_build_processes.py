"""Builds beside each other, killed or interrupted, and the memory that one takes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from build_places import LIMITS, siblings

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import RandomCheckpoint, write_random_llama_checkpoint, write_safetensors
from edgellm_ros.engine_format import open_engine_directory


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
