"""What every backend promises: memory, kernels, and an end. Engines, caches and sampling are in files of their own."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from backend_driver import PROMPT
from backend_subjects import Subject

from edgellm_ros.backends.base import Backend, CacheLayout, DataType, RopeKind
from edgellm_ros.engine_format import EMBEDDING_FILE
from edgellm_ros.errors import BackendError, EdgeLLMError, EngineDirectoryError, MisuseError


@pytest.mark.parametrize("dtype", list(DataType), ids=lambda dtype: dtype.value)
def test_fresh_memory_is_zero_and_what_is_written_is_read(backend: Backend, dtype: DataType) -> None:
    tensor = backend.allocate((3, 5), dtype)
    assert tensor.shape == (3, 5)
    assert tensor.dtype is dtype
    assert not tensor.numpy().any()
    values = (np.arange(15).reshape(3, 5) % 2).astype(dtype.numpy)
    tensor.write(values)
    assert np.array_equal(backend.read_async(tensor).wait(), values)
    assert tensor.numpy().dtype == dtype.numpy


def test_a_written_host_array_may_be_reused_at_once(backend: Backend) -> None:
    tensor = backend.allocate((4,), DataType.INT32)
    values = np.arange(4, dtype=np.int32)
    tensor.write(values)
    values[:] = -1
    assert backend.read_async(tensor).wait().tolist() == [0, 1, 2, 3]


def test_a_readback_belongs_to_its_caller(backend: Backend) -> None:
    tensor = backend.allocate((4,), DataType.INT32)
    readback = backend.read_async(tensor)
    backend.synchronize()
    assert readback.ready()
    tensor.write(np.full(4, 7, dtype=np.int32))
    assert readback.wait().tolist() == [0, 0, 0, 0]


def test_a_prefix_is_the_same_memory_packed_at_its_start(backend: Backend) -> None:
    tensor = backend.allocate((4, 6), DataType.FLOAT32)
    tensor.write(np.arange(24, dtype=np.float32).reshape(4, 6))
    small = tensor.prefix((2, 3))
    assert small.shape == (2, 3)
    assert backend.read_async(small).wait().tolist() == [[0, 1, 2], [3, 4, 5]]
    small.write(np.full((2, 3), -1, dtype=np.float32))
    assert backend.read_async(tensor).wait().reshape(-1)[:7].tolist() == [-1] * 6 + [6]
    assert small.prefix((1,)).numpy().tolist() == [-1]


@pytest.mark.parametrize("shape", [(25,), (5, 5), (-1, 6)], ids=str)
def test_a_prefix_that_does_not_fit_is_refused(backend: Backend, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="prefix"):
        backend.allocate((4, 6), DataType.FLOAT32).prefix(shape)


@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 2), np.float32), np.zeros(3, np.float64), np.zeros(3, np.int32)],
    ids=["shape", "float64", "int32"],
)
def test_a_write_of_another_shape_or_type_is_refused(backend: Backend, values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="want the same"):
        backend.allocate((3,), DataType.FLOAT32).write(values)


def test_memory_in_use_follows_what_is_allocated_and_dropped(backend: Backend) -> None:
    before = backend.memory()
    view = backend.allocate((1024,), DataType.FLOAT32).prefix((3,))
    cache = backend.allocate_kv_cache(CacheLayout(((1, 16),)), 2, 32)
    after = backend.memory()
    assert set(before) == set(after)
    assert after["tensors"] - before["tensors"] == 4096
    assert after["caches"] - before["caches"] == cache.bytes_per_position * 64
    del view, cache
    gc.collect()
    assert {**backend.memory(), "free": 0} == {**before, "free": 0}


def test_gathered_rows_are_scaled_and_unknown_ids_give_zeros(subject: Subject, backend: Backend) -> None:
    width, size = subject.config.hidden_size, subject.config.vocab_size
    plain = backend.open_embeddings(subject.directory / EMBEDDING_FILE)
    doubled = backend.open_embeddings(subject.directory / EMBEDDING_FILE, scale=2.0)
    assert plain.shape == (size, width)
    ids = backend.allocate((2, 3), DataType.INT32)
    out = backend.allocate((2, 3, width), DataType.FLOAT32)
    ids.write(np.array([[0, 5, size - 1], [5, 5, 1]], dtype=np.int32))
    backend.gather_embeddings(plain, ids, out)
    rows = backend.read_async(out).wait()
    assert np.array_equal(rows[0, 1], rows[1, 0])
    assert not np.array_equal(rows[0, 1], rows[0, 0])
    backend.gather_embeddings(doubled, ids, out)
    assert np.array_equal(backend.read_async(out).wait(), 2 * rows)
    ids.write(np.array([[-1, 5, size], [1 << 30, 5, -(1 << 31)]], dtype=np.int32))
    backend.gather_embeddings(plain, ids, out)
    outside = backend.read_async(out).wait()
    assert np.array_equal(outside[:, 1], np.stack([rows[0, 1]] * 2))
    assert not outside[:, [0, 2]].any()


def test_embeddings_of_a_missing_file_are_refused_by_name(subject: Subject, backend: Backend) -> None:
    with pytest.raises(EngineDirectoryError, match=r"absent\.safetensors"):
        backend.open_embeddings(subject.directory / "absent.safetensors")


@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_rope_tables_follow_their_definition_with_gaps_in_the_positions(backend: Backend, scale: float) -> None:
    frequency = 10000.0 ** -(np.arange(16) / 16)
    rope = RopeKind("test", tuple(frequency.tolist()), scale)
    positions = np.array([[0, 1, 7, 4095], [131071, 3, 3, 2]], dtype=np.int32)
    where = backend.allocate(positions.shape, DataType.INT32)
    where.write(positions)
    cosine, sine = (backend.allocate((2, 4, 16), DataType.FLOAT32) for _ in range(2))
    backend.rope_tables(rope, where, cosine, sine)
    angles = (positions[..., None].astype(np.float32) * frequency.astype(np.float32)).astype(np.float64)
    assert np.abs(cosine.numpy() - scale * np.cos(angles)).max() < 2e-6
    assert np.abs(sine.numpy() - scale * np.sin(angles)).max() < 2e-6


def test_a_directory_without_a_graph_is_refused_by_name(backend: Backend, tmp_path: object) -> None:
    with pytest.raises(EdgeLLMError, match=str(tmp_path)):
        backend.open_engine(tmp_path)  # type: ignore[arg-type]


def test_closing_twice_is_harmless_and_a_closed_backend_says_so(subject: Subject) -> None:
    driver = subject.open_driver()
    driver.answer(PROMPT, 2)
    driver.engine.close()
    driver.engine.close()
    with pytest.raises(BackendError, match="closed"):
        driver.engine.run(driver.shapes(1, 1))
    driver.backend.close()
    driver.backend.close()
    with pytest.raises(MisuseError, match="closed"):
        driver.backend.allocate((1,), DataType.INT32)
    with pytest.raises(MisuseError, match="closed"):
        driver.backend.open_engine(subject.directory)
