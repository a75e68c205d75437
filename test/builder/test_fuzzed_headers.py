"""Damaged headers give a sentence or sound numbers, in little memory: sizes are checked before they are believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOST_GROWTH = 128 << 20  # bytes; the files themselves have less than one megabyte


@pytest.mark.parametrize(
    "seed, seconds",
    [pytest.param(1, 3, id="briefly"), pytest.param(2, 60, id="for a minute", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_damaged_headers_are_refused_in_little_memory(tmp_path, kind, seed, seconds):
    paths = os.pathsep.join((str(HERE.parents[1]), str(HERE)))
    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz_headers.py"), kind, str(tmp_path / "fuzz"), str(seed), str(seconds)],
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=seconds + 120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout)
    assert found["tried"] > 10 * seconds
    assert 0.3 * found["tried"] < found["refused"] < found["tried"]
    assert found["grown"] < MOST_GROWTH
