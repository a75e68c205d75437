"""Kernels of the GPU backend against their twins in NumPy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_arrays import normal, put

from edgellm_ros.backends.base import DataType, RopeKind
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.host_backend import HostBackend


@pytest.fixture(scope="module")
def host() -> Iterator[HostBackend]:
    backend = HostBackend()
    yield backend
    backend.close()


def write_table(path: Path, values: np.ndarray, name: str, scales: np.ndarray | None = None) -> Path:
    entries = {"embedding": {"dtype": name, "shape": list(values.shape), "data_offsets": [0, values.nbytes]}}
    data = values.tobytes()
    if scales is not None:
        entries["embedding_row_scale"] = {
            "dtype": "F32", "shape": list(scales.shape), "data_offsets": [len(data), len(data) + scales.nbytes]
        }  # fmt: skip
        data += scales.tobytes()
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


@pytest.mark.parametrize("scale", [1.0, 8.25])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "I8"])
def test_embeddings_of_every_type_are_gathered_bit_for_bit(
    cuda: CUDABackend, host: HostBackend, tmp_path: Path, kind: str, scale: float
) -> None:
    values, scales = normal(3, 300, 67), None
    if kind == "F16":
        values = values.astype(np.float16)
        values[7, :4] = [np.float16(6e-8), np.float16(-0.0), np.float16(65504), np.float16(5.96e-8)]
    elif kind == "BF16":
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif kind == "I8":
        scales = np.abs(normal(4, 300)) + np.float32(0.01)
        values = np.random.default_rng(5).integers(-127, 128, values.shape).astype(np.int8)
    path = write_table(tmp_path / "embedding.safetensors", values, kind, scales)
    ids = np.random.default_rng(6).integers(0, 300, (3, 9)).astype(np.int32)
    ids[0, 0], ids[1, 1], ids[2, 2], ids[2, 3] = -1, 300, 299, 7
    answers = []
    for backend in (cuda, host):
        table = backend.open_embeddings(path, scale=scale)
        out = put(backend, np.full((3, 9, 67), 9.0, dtype=np.float32), DataType.FLOAT32)
        backend.gather_embeddings(table, put(backend, ids, DataType.INT32), out)
        answers.append(out.numpy().copy())
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("half", [1, 32, 33, 128], ids=str)
def test_rope_tables_agree_up_to_the_last_bits(cuda: CUDABackend, host: HostBackend, half: int) -> None:
    rope = RopeKind("r", tuple((1e4 ** -(np.arange(half) / half)).tolist()), 1.25)
    positions = np.array([[0, 1, 2, 500], [4095, 131071, 7, 8]], dtype=np.int32)
    answers = []
    for backend in (cuda, host):
        cosine, sine = (backend.allocate((2, 4, half), DataType.FLOAT32) for _ in range(2))
        backend.rope_tables(rope, put(backend, positions, DataType.INT32), cosine, sine)
        answers.append((cosine.numpy().copy(), sine.numpy().copy()))
    for ours, wanted in zip(*answers, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=3e-7)


@pytest.mark.parametrize(("dtype", "width"), [(DataType.FLOAT32, 5), (DataType.FLOAT16, 64), (DataType.INT32, 1)])
def test_rows_are_gathered_and_spliced_by_index(
    cuda: CUDABackend, host: HostBackend, dtype: DataType, width: int
) -> None:
    table = (100 * normal(7, 40, width)).astype(dtype.numpy)
    part = (100 * normal(8, 6, width)).astype(dtype.numpy)
    rows = np.array([3, 39, -1, 40, 0, 17], dtype=np.int32)
    answers = []
    for backend in (cuda, host):
        out = put(backend, np.ones((6, width), dtype=dtype.numpy), dtype)
        backend.gather_rows(put(backend, table, dtype), put(backend, rows, DataType.INT32), out)
        whole = put(backend, table, dtype)
        backend.splice_rows(put(backend, part, dtype), put(backend, rows, DataType.INT32), whole)
        answers.append((out.numpy().copy(), whole.numpy().copy()))
    for ours, wanted in zip(*answers, strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_rows_that_do_not_fit_are_refused(cuda: CUDABackend) -> None:
    table, rows = cuda.allocate((4, 3), DataType.FLOAT16), cuda.allocate((2,), DataType.INT32)
    with pytest.raises(ValueError, match="multiple of four bytes"):
        cuda.gather_rows(table, rows, cuda.allocate((2, 3), DataType.FLOAT16))


def test_an_euler_step_is_the_twins_bit_for_bit(cuda: CUDABackend, host: HostBackend) -> None:
    state, velocity = normal(9, 50, 32), normal(10, 50, 32)
    answers = []
    for backend in (cuda, host):
        tensor = put(backend, state, DataType.FLOAT32)
        for step in (0.1, -0.1, 1 / 3):
            backend.euler_step(tensor, put(backend, velocity, DataType.FLOAT32), step)
        noise = backend.allocate(state.shape, DataType.FLOAT32)
        backend.copy(tensor, noise)
        answers.append(noise.numpy().copy())
    np.testing.assert_array_equal(*answers)


def test_lengths_advance_together(cuda: CUDABackend) -> None:
    arrays = [np.arange(size, dtype=np.int32) for size in (1, 5, 300, 2, 7)]
    tensors = [put(cuda, values, DataType.INT32) for values in arrays]
    cuda.advance(tensors)
    cuda.advance(tensors, -3)
    for tensor, values in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), values - 2)
