"""How a graph description becomes nodes of one engine library."""

from __future__ import annotations

from ...errors import CheckpointError
from .base import Lowering
from .onnxruntime import OnnxRuntimeLowering
from .tensorrt import TensorRTLowering
from .tensorrt_legacy import TensorRTLegacyLowering

LOWERINGS: dict[str, Lowering] = {
    row.name: row for row in (OnnxRuntimeLowering(), TensorRTLowering(), TensorRTLegacyLowering())
}


def lowering(name: str) -> Lowering:
    """:raises CheckpointError: unknown; the sentence lists those there are."""
    if name not in LOWERINGS:
        raise CheckpointError(f"lowering is {name!r}; want one of {', '.join(LOWERINGS)}.")
    return LOWERINGS[name]
