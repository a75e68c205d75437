"""Engines that compute in bfloat16, by the numbers of ONNX's own reference implementation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from family_engines import ROWS, engine, reference
from onnx.reference import ReferenceEvaluator

from edgellm_ros.backends.base import DataType, RopeKind
from edgellm_ros.backends.host_backend import HostBackend
from edgellm_ros.backends.registry import open_backend
from edgellm_ros.builder.elements import LARGEST, bfloat16_bits
from edgellm_ros.engine_format import EMBEDDING_FILE, open_engine_directory
from edgellm_ros.errors import BackendError


def test_bits_are_those_of_the_nearest_bfloat16():
    random = np.random.default_rng(0)
    values = np.concatenate([
        random.normal(size=5000), random.normal(size=500) * 1e30, random.normal(size=500) * 1e-40,
        [0.0, -0.0, 1.00390625, 1.01171875, -1.00390625, LARGEST["bfloat16"], -LARGEST["bfloat16"], 1e-45],
    ]).astype(np.float32)  # fmt: skip
    np.testing.assert_array_equal(bfloat16_bits(values), values.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("lowering", ["tensorrt", "tensorrt_legacy"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_prompt_gives_about_the_logits_of_full_precision(family, lowering):
    path = engine(family, lowering, "bf16")
    directory = open_engine_directory(path)
    assert directory.config.kv_cache_dtype == "bfloat16" and directory.manifest.precision == "bf16"
    ids = np.array([ROWS[0]], dtype=np.int32)
    backend, count = HostBackend(), ids.shape[1]
    table = backend.open_embeddings(path / EMBEDDING_FILE, scale=directory.config.embedding_scale)
    assert table.dtype is DataType.BFLOAT16
    feeds = {
        "inputs_embeds": np.zeros((1, count, directory.config.hidden_size), dtype=np.float32),
        "past_length": np.zeros(1, dtype=np.int32),
        "last_token_index": np.arange(count, dtype=np.int32)[None],
    }
    table.gather(ids, feeds["inputs_embeds"])
    positions = backend.allocate(ids.shape, DataType.INT32)
    positions.write(feeds["last_token_index"])
    for kind, rope in directory.config.rope.items():
        tables = [backend.allocate((1, count, len(rope.inverse_frequency)), DataType.FLOAT32) for _ in range(2)]
        backend.rope_tables(RopeKind(kind, rope.inverse_frequency, rope.scale), positions, *tables)
        feeds |= {f"rope_{name}_{kind}": table.numpy() for name, table in zip(("cos", "sin"), tables, strict=True)}
    model = onnx.load(path / "llm.onnx")
    for info in model.graph.input:
        if info.name.startswith("past_") and info.name not in feeds:
            assert info.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
            shape = [size.dim_value or 1 for size in info.type.tensor_type.shape.dim]
            feeds[info.name] = np.zeros(shape, dtype=ml_dtypes.bfloat16)
    (logits,) = ReferenceEvaluator(model).run(["logits"], feeds)
    wanted = reference(family).logits(ROWS[0])
    distance = np.linalg.norm(logits[0] - wanted) / np.linalg.norm(wanted)
    assert logits.dtype == np.float32 and 1e-4 < distance < 0.05


@pytest.mark.parametrize("backend", ["auto", "onnxruntime", "onnxruntime_cuda"])
def test_what_cannot_compute_so_says_what_can(backend):
    directory = open_engine_directory(engine("llama", "tensorrt_legacy", "bf16"))
    with pytest.raises(BackendError, match="computes in bf16, which TensorRT alone runs; compile its plan"):
        open_backend(backend, directory=directory)
