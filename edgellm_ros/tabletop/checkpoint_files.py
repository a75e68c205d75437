"""Where the trained model lies that ships with the package."""

from __future__ import annotations

from pathlib import Path

from ..errors import MissingPackageError

FOLDER = Path(__file__).resolve().parent / "checkpoint"


def checkpoint_directory() -> Path:
    """The folder of the shipped SmolVLA checkpoint, in lerobot's layout; ``edgellm build`` takes it as it is.

    Raises:
        MissingPackageError: the installation was made without its data files.
    """
    if not (FOLDER / "model.safetensors").is_file():
        raise MissingPackageError(
            f"{FOLDER} has no model.safetensors: this installation lacks its data files; install the package again."
        )
    return FOLDER
