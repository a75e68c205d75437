"""Caches on a GPU in either order: rows, blocks and copies for other graphs, each whole and alone."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_arrays import normal, put

from edgellm_ros.backends.base import CacheLayout, DataType
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.cuda.kv_cache import CacheOrder, CUDAKVCache
from edgellm_ros.errors import BackendError, MisuseError


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
