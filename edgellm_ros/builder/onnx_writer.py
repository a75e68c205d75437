"""A graph on disk: a small ONNX file, and weights beside it that are streamed there band by band."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import CheckpointError, MissingPackageError
from .graph import DATA_FILE, Graph
from .graph_parts import Node, StoredTensor, TensorInfo

if TYPE_CHECKING:
    import onnx

PAGE = 4096  # engines map the file: a weight that starts on a page needs no copy

# numbers of onnx.TensorProto.DataType
_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "bfloat16": 16, "int4": 22
}  # fmt: skip


@dataclass(frozen=True)
class GraphFiles:
    """What writing the graph will give: the ONNX file, and place and size of the weights in its data file."""

    model: bytes
    offsets: dict[str, int]
    data_size: int


def check_packages() -> None:
    """:raises MissingPackageError: onnx is not installed."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise MissingPackageError(
            "the package onnx is not installed; want it for building: pip install 'edgellm_ros[build]'."
        ) from None


def _node(node: Node) -> onnx.NodeProto:
    import onnx

    attributes = dict(node.attributes)
    if "to" in attributes:
        attributes["to"] = _TYPES[attributes["to"]]
    return onnx.helper.make_node(
        node.operator, node.inputs, node.outputs, name=node.outputs[0], domain=node.domain, **attributes
    )


def _info(info: TensorInfo) -> onnx.ValueInfoProto:
    import onnx

    return onnx.helper.make_tensor_value_info(info.name, _TYPES[info.dtype], info.shape)


def _external(stored: StoredTensor, file: str, offset: int) -> onnx.TensorProto:
    import onnx

    proto = onnx.TensorProto(
        name=stored.name, data_type=_TYPES[stored.dtype], dims=stored.shape, data_location=onnx.TensorProto.EXTERNAL
    )
    for key, value in (("location", file), ("offset", offset), ("length", stored.size)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def lay_out(graph: Graph, name: str, data_file: str = DATA_FILE) -> GraphFiles:
    """Decide where in ``data_file`` every weight goes and write the ONNX file into memory; nothing is read yet."""
    import onnx

    offsets: dict[str, int] = {}
    end = 0
    used = {name for node in graph.nodes for name in node.inputs}
    constants = {key: array for key, array in graph.constants.items() if key in used}
    initializers = [onnx.numpy_helper.from_array(array, key) for key, array in constants.items()]
    for parameter in graph.parameters:
        for stored in parameter.tensors:
            offsets[stored.name] = -(-end // PAGE) * PAGE if stored.size >= PAGE else -(-end // 64) * 64
            end = offsets[stored.name] + stored.size
            initializers.append(_external(stored, data_file, offsets[stored.name]))
    for stored, shared in graph.references:
        initializers.append(_external(stored, shared.file, shared.offset))
    lowering = graph.lowering
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [_node(node) for node in graph.nodes],
            name,
            [_info(info) for info in graph.inputs],
            [_info(info) for info in graph.outputs],
            initializers,
        ),
        opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in lowering.opsets.items()],
        ir_version=lowering.ir_version,
        producer_name="edgellm_ros",
    )
    onnx.helper.set_model_props(model, dict(sorted(graph.metadata.items())))
    return GraphFiles(model.SerializeToString(deterministic=True), offsets, end)


def _write_columns(path: Path, offset: int, stored: StoredTensor, band: np.ndarray, written: int) -> None:
    """Put ``band`` beside the ``written`` bytes of bands before it, along the second axis of the tensor."""
    if offset + stored.size > path.stat().st_size or written + band.nbytes > stored.size:
        raise CheckpointError(f"tensor {stored.name!r} gave more bytes than its {stored.size}.")
    view: np.ndarray = np.memmap(path, dtype=stored.stored_dtype, mode="r+", offset=offset, shape=stored.stored_shape)
    first = written // (len(view) * view.itemsize)
    view[:, first : first + band.shape[1]] = band


def write_weights(graph: Graph, files: GraphFiles, path: Path, progress: Callable[[int], None]) -> None:
    """Stream every weight to ``path``; ``progress`` gets the bytes of each step.

    :raises CheckpointError: a weight cannot be read, is not finite, or gave another number of bytes than its shape.
    """
    with path.open("wb") as file:
        file.truncate(files.data_size)
        for parameter in graph.parameters:
            written = [0] * len(parameter.tensors)
            for band in parameter.bands():
                for index, (stored, array) in enumerate(zip(parameter.tensors, band, strict=True)):
                    data = np.ascontiguousarray(array, dtype=stored.stored_dtype)
                    if parameter.axis == 0:
                        file.seek(files.offsets[stored.name] + written[index])
                        file.write(data.data)
                    else:
                        _write_columns(path, files.offsets[stored.name], stored, data, written[index])
                    written[index] += data.nbytes
                    progress(data.nbytes)
            for stored, found in zip(parameter.tensors, written, strict=True):
                if found != stored.size:
                    raise CheckpointError(f"tensor {stored.name!r} gave {found} bytes; want {stored.size}.")
        file.flush()
        os.fsync(file.fileno())
