"""Checkpoints of a training run: a whole one on the training machine, and a light one cut into small files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

PART_BYTES = 15 * 1024 * 1024


def save_whole(path: Path, state: dict[str, Any]) -> None:
    """Write everything, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def save_light(folder: Path, state: dict[str, Any]) -> None:
    """Write weights and their running mean as bfloat16, without the optimiser, as parts of at most 15 MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    small = {key: value for key, value in state.items() if key not in ("optimiser", "weights", "mean")}
    for name in ("weights", "mean"):
        small[name] = {key: value.bfloat16() for key, value in state[name].items()}
    stream = io.BytesIO()
    torch.save(small, stream)
    content = stream.getvalue()
    parts = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
    for number, part in enumerate(parts):  # beside the last checkpoint, which stays until this one is written
        (folder / f"new.{number}").write_bytes(part)
    for old in folder.glob("light.*"):
        old.unlink()
    for number in range(len(parts)):
        (folder / f"new.{number}").replace(folder / f"light.{number}")


def load(path: Path) -> dict[str, Any]:
    """Read a whole checkpoint (a file) or a light one (its folder).

    :raises FileNotFoundError: there is neither.
    """
    if path.is_file():
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    parts = sorted(path.glob("light.*"), key=lambda part: int(part.suffix[1:]))
    if not parts:
        raise FileNotFoundError(f"{path} is no checkpoint file and has no light.0; want what a run left in OUT.")
    content = b"".join(part.read_bytes() for part in parts)
    return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
