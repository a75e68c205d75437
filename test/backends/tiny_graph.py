"""A small attention model written node by node, with switches that break it in the ways a probe must notice."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgellm_ros.engine_format import EMBEDDING_FILE, GRAPH_FILE, BuilderLimits, EngineConfig, RopeConfig

HEADS, KV_HEADS, HEAD_SIZE, LAYERS, VOCABULARY = 4, 2, 16, 2, 96
WIDTH = HEADS * HEAD_SIZE
FREQUENCIES = tuple(float(value) for value in 10000.0 ** -(np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2)))


def tiny_config(limits: BuilderLimits | None = None) -> EngineConfig:
    return EngineConfig(
        model="tiny",
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        kv_layers=((KV_HEADS, HEAD_SIZE),) * LAYERS,
        kv_cache_dtype="float32",
        rope={"default": RopeConfig(FREQUENCIES)},
        eos_token_id=(0,),
        limits=limits or BuilderLimits(4, 64, 256),
    )


def write_embeddings(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    """A safetensors file from (its type name, array) by tensor name."""
    header: dict[str, object] = {}
    offset = 0
    for name, (kind, array) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(
        struct.pack("<Q", len(encoded)) + encoded + b"".join(array.tobytes() for _, array in tensors.values())
    )


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(3)

    def add(self, operator: str, inputs: list[str], outputs: str | list[str], **attributes: object) -> str:
        names = [outputs] if isinstance(outputs, str) else outputs
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0]

    def constant(self, name: str, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def matrix(self, name: str, rows: int, columns: int) -> str:
        values = self.random.normal(0.0, rows**-0.5, (rows, columns)).astype(np.float32)
        return self.constant(name, values)

    def rotate(self, source: str, heads: int, name: str) -> str:
        """The two halves of each head, rotated by the tables."""
        shape = self.constant(f"{name}_split", np.array([0, 0, heads, HEAD_SIZE], dtype=np.int64))
        flat = self.constant(f"{name}_flat", np.array([0, 0, heads * HEAD_SIZE], dtype=np.int64))
        split = self.add("Reshape", [source, shape], f"{name}_4d")
        half = self.constant(f"{name}_half", np.array([HEAD_SIZE // 2] * 2, dtype=np.int64))
        self.add("Split", [split, half], [f"{name}_a", f"{name}_b"], axis=-1)
        for out, first, second, operator in (("x", "a", "b", "Sub"), ("y", "b", "a", "Add")):
            left = self.add("Mul", [f"{name}_{first}", "cosine"], f"{name}_{out}_left")
            right = self.add("Mul", [f"{name}_{second}", "sine"], f"{name}_{out}_right")
            self.add(operator, [left, right], f"{name}_{out}")
        joined = self.add("Concat", [f"{name}_x", f"{name}_y"], f"{name}_joined", axis=-1)
        return self.add("Reshape", [joined, flat], f"{name}_rotated")


def write_tiny_model(
    directory: Path,
    *,
    ragged: bool = True,
    ignore_past: bool = False,
    ignore_query: bool = False,
    broken_weights: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write llm.onnx and embedding.safetensors; ``ragged=False`` leaves ``query_length`` out."""
    graph = _Graph()
    axis2 = graph.constant("axis2", np.array([2], dtype=np.int64))
    for table, name in (("rope_cos_default", "cosine"), ("rope_sin_default", "sine")):
        graph.add("Unsqueeze", [table, axis2], name)
    one = graph.constant("one", np.array(1, dtype=np.int32))
    past = "past_length"
    if ignore_past:
        past = graph.add("Sub", ["past_length", "past_length"], "no_past")
    graph.add("Shape", ["inputs_embeds"], "chunk64", start=1, end=2)
    graph.add("Cast", ["chunk64"], "chunk", to=TensorProto.INT32)
    query = "query_length"
    if not ragged or ignore_query:
        query = graph.add("Expand", ["chunk", graph.add("Shape", ["past_length"], "rows")], "whole_chunk")
    graph.add("Sub", [graph.add("Add", [past, query], "total"), one], "last")
    graph.add("Shape", ["past_key_0"], "capacity64", start=2, end=3)
    graph.add("Cast", ["capacity64"], "capacity", to=TensorProto.INT32)
    hidden = "inputs_embeds"
    for layer in range(LAYERS):
        norm = graph.constant(f"norm_{layer}", np.ones(WIDTH, dtype=np.float32))
        normed = graph.add("RMSNormalization", [hidden, norm], f"normed_{layer}", axis=-1, epsilon=1e-5)
        projected = {
            part: graph.add(
                "MatMul", [normed, graph.matrix(f"w_{part}_{layer}", WIDTH, count * HEAD_SIZE)], f"{part}_{layer}"
            )
            for part, count in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        }
        graph.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [
                    graph.rotate(projected["q"], HEADS, f"rq_{layer}"),
                    graph.rotate(projected["k"], KV_HEADS, f"rk_{layer}"),
                    projected["v"],
                    f"past_key_{layer}",
                    f"past_value_{layer}",
                    "last",
                    "capacity",
                    *[""] * 9,
                    query,
                ],
                [f"attended_{layer}", f"present_key_{layer}", f"present_value_{layer}"],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
            )
        )
        mixed = graph.add("MatMul", [f"attended_{layer}", graph.matrix(f"w_o_{layer}", WIDTH, WIDTH)], f"mixed_{layer}")
        hidden = graph.add("Add", [hidden, mixed], f"hidden_{layer}")
    axis_last = graph.constant("axis_last", np.array([-1], dtype=np.int64))
    graph.add("Cast", ["last_token_index"], "index64", to=TensorProto.INT64)
    graph.add("GatherND", [hidden, graph.add("Unsqueeze", ["index64", axis_last], "index")], "wanted", batch_dims=1)
    head = graph.matrix("head", WIDTH, VOCABULARY)
    if broken_weights:
        graph.weights[-1] = numpy_helper.from_array(np.full((WIDTH, VOCABULARY), np.nan, dtype=np.float32), head)
    graph.add("MatMul", ["wanted", head], "logits")
    half = HEAD_SIZE // 2
    inputs = {
        "inputs_embeds": (TensorProto.FLOAT, ["B", "S", WIDTH]),
        "rope_cos_default": (TensorProto.FLOAT, ["B", "S", half]),
        "rope_sin_default": (TensorProto.FLOAT, ["B", "S", half]),
        "past_length": (TensorProto.INT32, ["B"]),
        **({"query_length": (TensorProto.INT32, ["B"])} if ragged else {}),
        "last_token_index": (TensorProto.INT32, ["B", "R"]),
    }
    outputs = {"logits": (TensorProto.FLOAT, ["B", "R", VOCABULARY])}
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            inputs[f"past_{kind}_{layer}"] = (TensorProto.FLOAT, ["B", KV_HEADS, "L", HEAD_SIZE])
            outputs[f"present_{kind}_{layer}"] = (TensorProto.FLOAT, ["B", KV_HEADS, "L", HEAD_SIZE])
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "tiny",
            [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()],
            [helper.make_tensor_value_info(name, *value) for name, value in outputs.items()],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)],
        ir_version=11,
    )
    if metadata:
        helper.set_model_props(model, dict(metadata))
    directory.mkdir(parents=True, exist_ok=True)
    onnx.save(model, directory / GRAPH_FILE)
    rows = np.random.default_rng(5).normal(0.0, 1.0, (VOCABULARY, WIDTH)).astype(np.float32)
    write_embeddings(directory / EMBEDDING_FILE, {"embedding": ("F32", rows)})
    return directory
