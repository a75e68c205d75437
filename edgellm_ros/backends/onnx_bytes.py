"""The few bytes of an ONNX file with one node, written without the onnx package, which a robot does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FLOAT, UINT8, INT8, INT32 = 1, 2, 3, 6


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _block(field: int, content: bytes | str) -> bytes:
    data = content.encode("utf-8") if isinstance(content, str) else content
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _value(name: str, element: int, shape: Sequence[int]) -> bytes:
    dimensions = b"".join(_block(1, _number(1, size)) for size in shape)
    return _block(1, name) + _block(2, _block(1, _number(1, element) + _block(2, dimensions)))


def one_node_model(
    operator: str,
    domain: str,
    attributes: Mapping[str, int],
    inputs: Mapping[str, tuple[int, Sequence[int]]],
    outputs: Mapping[str, tuple[int, Sequence[int]]],
    *,
    node_inputs: Sequence[str],
) -> bytes:
    """A serialised model whose only node reads ``node_inputs`` ("" leaves one out) and gives all ``outputs``.

    ``inputs`` and ``outputs`` map a name to its ONNX element type and shape.
    """
    node = b"".join(_block(1, name) for name in node_inputs)
    node += b"".join(_block(2, name) for name in outputs)
    node += _block(4, operator)
    for name, number in attributes.items():
        node += _block(5, _block(1, name) + _number(3, number) + _number(20, 2))
    node += _block(7, domain)
    graph = _block(1, node) + _block(2, "probe")
    graph += b"".join(_block(11, _value(name, *value)) for name, value in inputs.items())
    graph += b"".join(_block(12, _value(name, *value)) for name, value in outputs.items())
    opsets = _block(8, _block(1, "") + _number(2, 21)) + _block(8, _block(1, domain) + _number(2, 1))
    return _number(1, 10) + _block(7, graph) + opsets
