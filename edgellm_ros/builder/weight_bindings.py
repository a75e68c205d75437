"""An engine without weights: which tensors of the checkpoint each of its tensors is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..backends.safetensors_map import checkpoint_identity
from ..engine_format import BINDINGS_KEY, EMBEDDING_BINDING_KEY, IDENTITY_KEY
from ..errors import CheckpointError
from .checkpoint import Checkpoint
from .graph import Graph
from .huggingface_checkpoint import HuggingFaceCheckpoint
from .weights import Weight, WeightPart


def weight_bindings(checkpoint: Checkpoint, graph: Graph, embedding: Weight) -> Mapping[str, Any]:
    """The keys of ``config.json`` that tell where the weights of ``graph`` lie.

    :raises CheckpointError: the checkpoint is no folder of a text model, or a tensor is stored otherwise than there.
    """
    if not isinstance(checkpoint, HuggingFaceCheckpoint):
        raise CheckpointError("an engine without weights is of a Hugging Face folder of a text model; give one.")
    bindings: dict[str, Any] = {}
    for parameter in graph.parameters:
        (stored, *others) = parameter.tensors
        if others or not parameter.parts or stored.dtype != "float32":
            raise CheckpointError(
                f"the engine stores {parameter.weight!r} otherwise than the checkpoint does; an engine without weights "
                "wants precision fp32 and the lowering onnxruntime."
            )
        bindings[stored.name] = [_part(part) for part in parameter.parts]
    for stored, _ in graph.references:
        bindings[stored.name] = [_part(part) for part in embedding.parts]
    (place,) = embedding.parts
    return {
        BINDINGS_KEY: bindings,
        EMBEDDING_BINDING_KEY: place.tensor,
        IDENTITY_KEY: checkpoint_identity(checkpoint.path),
    }


def _part(part: WeightPart) -> dict[str, Any]:
    return {"tensor": part.tensor, "steps": [list(step) for step in part.steps]}
