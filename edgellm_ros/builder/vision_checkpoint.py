"""The vision part of a vision-language checkpoint, its tensors by the names of the towers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import CheckpointError
from .checkpoint import Checkpoint, stored_names
from .vision_families.base import Tower
from .vision_families.names import vision_tensor_name
from .weights import Weight


def vision_weights(checkpoint: Checkpoint, tower: Tower) -> dict[str, Weight]:
    """Every tensor of the tower, still in its file.

    :raises CheckpointError: one is missing, of another shape, or one that the graph would leave out.
    """
    names = stored_names(checkpoint.shapes, vision_tensor_name)
    wanted = tower.tensors()
    for name, shape in wanted.items():
        if name not in names:
            raise CheckpointError(
                f"the checkpoint lacks the vision tensor {name!r} of shape {list(shape)}; fetch it again."
            )
        found = checkpoint.shapes[names[name]]
        if found != shape:
            raise CheckpointError(
                f"tensor {names[name]!r} has the shape {list(found)}; its configuration wants {list(shape)}."
            )
    for known, name in names.items():
        if known not in wanted and not tower.may_be_left_out(known):
            raise CheckpointError(
                f"the checkpoint holds the vision tensor {name!r} that this architecture does not use; a graph without "
                "it would give other embeddings: check config.json."
            )
    return {name: _weight(checkpoint, name, names[name], shape) for name, shape in wanted.items()}


def _weight(checkpoint: Checkpoint, name: str, stored: str, shape: tuple[int, ...]) -> Weight:
    def read(start: int, stop: int) -> np.ndarray:
        return checkpoint.read_rows(stored, start, stop)

    return Weight(name, shape, read, lambda start, stop: None)


def has_vision(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint holds any vision tensor: the text part of one may be saved alone."""
    return any(vision_tensor_name(name) is not None for name in shapes)
