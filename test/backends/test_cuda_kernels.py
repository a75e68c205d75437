"""Memory, kernels, caches and recorded steps of the GPU backend against the same work in NumPy."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.backends.base import CacheLayout, DataType, RopeKind, Tensor
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.cuda.kv_cache import CacheOrder, CUDAKVCache
from edgellm_ros.backends.host_backend import HostBackend
from edgellm_ros.errors import BackendError, MisuseError


@pytest.fixture(scope="module")
def host() -> Iterator[HostBackend]:
    backend = HostBackend()
    yield backend
    backend.close()


def put(backend: CUDABackend | HostBackend, values: np.ndarray, dtype: DataType) -> Tensor:
    tensor = backend.allocate(values.shape, dtype)
    tensor.write(values)
    return tensor


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 1.0, shape).astype(np.float32)


# ---- memory


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 300_000, 1_500_001], ids=str)
def test_what_is_written_is_read_back_whatever_the_size(cuda: CUDABackend, count: int) -> None:
    values = np.arange(count, dtype=np.int32)
    tensor = put(cuda, values, DataType.INT32)
    np.testing.assert_array_equal(tensor.numpy(), values)


def test_a_host_array_may_change_as_soon_as_it_was_written(cuda: CUDABackend) -> None:
    tensors, wanted = [], []
    values = np.zeros(70_000, dtype=np.int32)  # more in all than the staging memory holds
    for number in range(40):
        values[:] = number
        tensors.append(put(cuda, values, DataType.INT32))
        wanted.append(number)
    assert [int(tensor.numpy().min()) for tensor in tensors] == wanted
    assert [int(tensor.numpy().max()) for tensor in tensors] == wanted


def test_fresh_memory_is_zero_and_a_prefix_is_the_same_memory(cuda: CUDABackend) -> None:
    tensor = cuda.allocate((4, 6), DataType.FLOAT32)
    assert not tensor.numpy().any()
    tensor.prefix((2, 3)).write(normal(1, 2, 3))
    np.testing.assert_array_equal(tensor.numpy().reshape(-1)[:6], normal(1, 2, 3).reshape(-1))
    with pytest.raises(ValueError, match="want one inside"):
        tensor.prefix((25,))


def test_readbacks_keep_what_stood_there_when_they_were_asked(cuda: CUDABackend) -> None:
    tensor = put(cuda, np.array([1], dtype=np.int32), DataType.INT32)
    readbacks = []
    for _ in range(20):
        readbacks.append(cuda.read_async(tensor))
        cuda.advance([tensor])
    assert [int(readback.wait()[0]) for readback in readbacks] == list(range(1, 21))
    assert all(readback.ready() for readback in readbacks)


# ---- kernels and their twins


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


# ---- caches


def fill(cuda: CUDABackend, cache: CUDAKVCache) -> list[np.ndarray]:
    """Different numbers everywhere; as [rows, positions, heads, size] for both orders."""
    images = []
    for array, (heads, size) in enumerate(pair for pair in cache.layout.layers for _ in "kv"):
        values = np.arange(cache.rows * cache.capacity * heads * size) % 30011 + array
        values = values.astype(cache.dtype.numpy)
        cuda.device.write(cache.address(array, 0), values)
        images.append(view(values, cache, heads, size))
    return images


def view(values: np.ndarray, cache: CUDAKVCache, heads: int, size: int) -> np.ndarray:
    if cache.order is CacheOrder.TIME_FIRST:
        return values.reshape(cache.rows, cache.capacity, heads, size)
    return values.reshape(cache.rows, heads, cache.capacity, size).swapaxes(1, 2)


def content(cuda: CUDABackend, cache: CUDAKVCache) -> list[np.ndarray]:
    images = []
    for array, (heads, size) in enumerate(pair for pair in cache.layout.layers for _ in "kv"):
        shape = (cache.rows * cache.capacity * heads * size,)
        values = cuda.device.read(cache.address(array, 0), shape, cache.dtype.numpy).wait()
        images.append(view(values, cache, heads, size))
    return images


@pytest.mark.parametrize("order", list(CacheOrder), ids=lambda order: order.value)
@pytest.mark.parametrize("dtype", [DataType.FLOAT32, DataType.FLOAT16])
@pytest.mark.parametrize("size", [64, 5], ids=["wide", "odd"])
def test_rows_and_blocks_of_a_cache_move_whole_and_alone(
    cuda: CUDABackend, order: CacheOrder, dtype: DataType, size: int
) -> None:
    layout = CacheLayout(((3, size), (1, size), (2, size)), dtype)
    cache = CUDAKVCache(cuda.device, cuda.kernels, layout, 4, 20, order)
    wanted = fill(cuda, cache)
    cache.copy_row(3, 1, 13)
    block = cache.export_block(2, 4, 9)
    cache.import_block(0, 11, block)
    cache.copy_row(2, 2, 20)
    cache.copy_row(0, 3, 0)
    for image in wanted:
        image[1, :13] = image[3, :13]
        image[0, 11:20] = image[2, 4:13]
    for ours, image in zip(content(cuda, cache), wanted, strict=True):
        np.testing.assert_array_equal(ours, image)


def test_what_lies_outside_a_cache_or_belongs_elsewhere_is_refused(cuda: CUDABackend) -> None:
    layout = CacheLayout(((1, 8),), DataType.FLOAT16)
    cache = CUDAKVCache(cuda.device, cuda.kernels, layout, 2, 16, CacheOrder.HEADS_FIRST)
    other = CUDAKVCache(cuda.device, cuda.kernels, layout, 2, 16, CacheOrder.TIME_FIRST)
    for row, start, count in ((2, 0, 1), (0, 10, 7), (-1, 0, 1), (0, -1, 2)):
        with pytest.raises(MisuseError, match="want some inside"):
            cache.export_block(row, start, count)
    with pytest.raises(MisuseError, match="another backend or model"):
        cache.import_block(0, 0, other.export_block(0, 0, 4))
    with pytest.raises(BackendError, match="int8 cache"):
        CUDAKVCache(cuda.device, cuda.kernels, CacheLayout(((1, 8),), DataType.INT8), 1, 8, CacheOrder.HEADS_FIRST)


@pytest.mark.parametrize("order", list(CacheOrder), ids=lambda order: order.value)
@pytest.mark.parametrize("dtype", [DataType.FLOAT32, DataType.FLOAT16, DataType.BFLOAT16])
@pytest.mark.parametrize(("size", "room"), [(64, 96), (5, 37)], ids=["wide", "odd"])
def test_a_row_is_laid_out_for_another_graph_with_zeros_behind_it(
    cuda: CUDABackend, order: CacheOrder, dtype: DataType, size: int, room: int
) -> None:
    layout = CacheLayout(((3, size), (1, 2 * size), (2, size)), dtype)
    cache = CUDAKVCache(cuda.device, cuda.kernels, layout, 3, 100, order)
    images = fill(cuda, cache)
    for length, layers in ((35, 3), (room - 1, 2), (0, 1)):
        shapes = [shape for heads, width in layout.layers[:layers]
                  for shape in ((1, heads, width, room), (1, heads, room, width))]  # fmt: skip
        tensors = [put(cuda, np.full(shape, 7, dtype.numpy), dtype) for shape in shapes]
        cache.copy_out(1, length, tensors)
        for index, (tensor, image) in enumerate(zip(tensors, images, strict=False)):
            wanted = np.zeros((image.shape[2], room, image.shape[3]), dtype.numpy)
            wanted[:, :length] = image[1, :length].swapaxes(0, 1)
            found = tensor.numpy()[0]
            np.testing.assert_array_equal(found if index % 2 else found.swapaxes(1, 2), wanted)
    for ours, image in zip(content(cuda, cache), images, strict=True):
        np.testing.assert_array_equal(ours, image)


@pytest.mark.parametrize(
    ("shapes", "dtype", "length"),
    [
        ([(1, 2, 8, 9), (1, 2, 9, 8)], DataType.FLOAT16, 10),
        ([(1, 2, 8, 9), (1, 2, 9, 8)], DataType.FLOAT32, 9),
        ([(1, 2, 8, 9), (1, 2, 12, 8)], DataType.FLOAT16, 9),
        ([(1, 2, 9, 8), (1, 2, 9, 8)], DataType.FLOAT16, 8),
        ([(1, 2, 8, 9)], DataType.FLOAT16, 9),
        ([(1, 2, 8, 9), (1, 2, 9, 8)] * 2, DataType.FLOAT16, 9),
    ],
)
def test_a_row_is_laid_out_into_nothing_else(
    cuda: CUDABackend, shapes: list[tuple[int, ...]], dtype: DataType, length: int
) -> None:
    layout = CacheLayout(((2, 8),), DataType.FLOAT16)
    cache = CUDAKVCache(cuda.device, cuda.kernels, layout, 1, 32, CacheOrder.HEADS_FIRST)
    with pytest.raises(MisuseError, match="want float16 keys"):
        cache.copy_out(0, length, [cuda.allocate(shape, dtype) for shape in shapes])
    with pytest.raises(MisuseError, match="want some inside"):
        cache.copy_out(1, 1, [])


@pytest.mark.parametrize("size", [64, 5], ids=["wide", "odd"])
def test_new_rows_are_scattered_to_their_positions_and_padding_nowhere(cuda: CUDABackend, size: int) -> None:
    rows, capacity, heads, batch, chunk, first = 5, 12, 2, 3, 4, 1
    width = heads * size
    cache = normal(11, rows, capacity, width)
    new = normal(12, batch, chunk, width)
    past, query = np.array([0, 5, 10], dtype=np.int32), np.array([4, 1, 4], dtype=np.int32)
    places = [put(cuda, values, DataType.FLOAT32) for values in (cache, new)]
    lengths = [put(cuda, values, DataType.INT32) for values in (past, query)]
    table = put(cuda, np.array([places[1].address, places[0].address, width * 4], dtype=np.uint64), DataType.UINT64)
    cuda.kernels["scatter_positions"].launch(
        (chunk, batch, 1), 128, table.address, lengths[0].address, lengths[1].address, chunk, capacity, first
    )
    for row in range(batch):
        for offset in range(int(query[row])):
            if past[row] + offset < capacity:  # the last two of row 2 lie beyond the cache
                cache[first + row, past[row] + offset] = new[row, offset]
    np.testing.assert_array_equal(places[0].numpy(), cache)


# ---- recorded steps


def test_a_recorded_step_replays_and_follows_the_state_on_the_device(cuda: CUDABackend) -> None:
    counter = put(cuda, np.zeros(3, dtype=np.int32), DataType.INT32)
    step = cuda.capture(("count", 3), lambda: cuda.advance([counter], 2))
    for run in range(1, 6):
        step.run()
        np.testing.assert_array_equal(counter.numpy(), np.full(3, 2 * run))
        assert step.recorded == (run >= 2)
    counter.write(np.array([10, 20, 30], dtype=np.int32))
    step.run()
    np.testing.assert_array_equal(counter.numpy(), [12, 22, 32])


def test_a_step_that_cannot_be_recorded_runs_as_it_is(cuda: CUDABackend, caplog: pytest.LogCaptureFixture) -> None:
    counter = cuda.allocate((1,), DataType.INT32)

    def step() -> None:
        cuda.advance([counter])
        cuda.synchronize()  # may not stand in a graph

    captured = cuda.capture("waits", step)
    for run in range(1, 5):
        captured.run()
        assert counter.numpy().tolist() == [run]
    assert not captured.recorded and captured.failure
    assert len([row for row in caplog.records if "without a CUDA graph" in row.message]) == 1
    cuda.advance([counter])
    assert counter.numpy().tolist() == [5]


@pytest.mark.parametrize("misuse", ["allocate", "write", "read"])
def test_a_step_that_takes_memory_or_meets_the_host_is_not_recorded(cuda: CUDABackend, misuse: str) -> None:
    tensor = cuda.allocate((2,), DataType.INT32)
    actions = {
        "allocate": lambda: cuda.allocate((4,), DataType.INT32),
        "write": lambda: tensor.write(np.ones(2, dtype=np.int32)),
        "read": lambda: cuda.read_async(tensor),
    }
    captured = cuda.capture(misuse, actions[misuse])
    captured.run()
    assert not captured.record() and "while a step is recorded" in captured.failure
    captured.run()
    cuda.synchronize()


def test_running_out_of_memory_says_so_and_harms_nothing(cuda: CUDABackend) -> None:
    tensor = put(cuda, np.arange(5, dtype=np.int32), DataType.INT32)
    _, total = cuda.device.memory()
    for _ in range(2):
        with pytest.raises(BackendError, match="out of memory"):
            cuda.allocate((2 * total,), DataType.UINT8)
    cuda.advance([tensor])
    assert tensor.numpy().tolist() == [1, 2, 3, 4, 5]


def test_memory_that_is_let_go_comes_back(cuda: CUDABackend) -> None:
    gc.collect()  # what failures of earlier tests still hold would come back meanwhile
    cuda.synchronize()
    before = cuda.device.allocated()
    for _ in range(50):
        tensors = [cuda.allocate((1 << 20,), DataType.FLOAT32) for _ in range(4)]
        cuda.advance([tensors[0].prefix((4,))])
        del tensors
    assert cuda.device.allocated() == before
