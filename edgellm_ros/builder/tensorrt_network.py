"""How a TensorRT network is created, and what an imported one may be made of, where versions differ."""

from __future__ import annotations

from typing import Any

from ..backends.cuda.tensorrt_api import TensorRT
from ..errors import CheckpointError

_WEAK_FLAGS = {"fp16": "FP16", "bf16": "BF16"}  # of a builder, by precision, where types are its own choice


def strongly_typed(module: Any) -> bool:
    """Whether networks compute in the types that the graph says: where that can be asked for, or is the only way."""
    return hasattr(module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED") or not hasattr(module.BuilderFlag, "FP16")


def network_flags(api: TensorRT) -> int:
    """Types as the graph says where that must be asked for, explicit batch where there is another way."""
    kinds = api.module.NetworkDefinitionCreationFlag
    if hasattr(kinds, "STRONGLY_TYPED"):
        return 1 << int(kinds.STRONGLY_TYPED)
    return 0 if api.modern else 1 << int(kinds.EXPLICIT_BATCH)


def precision_flag(api: TensorRT, precision: str) -> Any | None:
    """The builder's flag for a precision; None where none is wanted.

    :raises CheckpointError: this version has no such type.
    """
    name = _WEAK_FLAGS.get(precision)
    if name is None or strongly_typed(api.module):
        return None
    if not hasattr(api.module.BuilderFlag, name):
        raise CheckpointError(
            f"precision is {precision!r}; TensorRT {api.version} has no such numbers: build with '--precision fp16', "
            "or install 10.3 or newer."
        )
    return getattr(api.module.BuilderFlag, name)


def allow_decomposition(module: Any, network: Any) -> None:
    """Let attention be built of parts: in float32, and of some head sizes, it has no kernel of its own.

    ``module`` is TensorRT, or TensorRT-RTX; older versions have no such layer.
    """
    kind = getattr(module.LayerType, "ATTENTION_OUTPUT", None)
    if kind is None:
        return
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == kind:
            layer.__class__ = module.IAttentionOutputLayer
            layer.attention.decomposable = True
