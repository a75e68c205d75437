"""Images resized and cut by a GPU's kernels against the same work in NumPy, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.host_backend import HostBackend
from edgellm_ros.backends.image_kernels import Order
from edgellm_ros.vision.device_images import DeviceImages
from edgellm_ros.vision.image_plan import ImagePlan, Patches, Resized, Tiles
from edgellm_ros.vision.resize_taps import Filter


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """Black and white dots, whose sums go furthest beyond 0 and 255."""
    return np.random.default_rng(seed).choice(np.array([0, 255], np.uint8), (height, width, 3))


def assert_same_pixels(cuda: CUDABackend, image: np.ndarray, plan: ImagePlan) -> None:
    host = HostBackend()
    found, wanted = (DeviceImages(backend).prepare(image, plan).numpy() for backend in (cuda, host))
    np.testing.assert_array_equal(found, wanted)
    assert wanted.any()
    host.close()


@pytest.mark.parametrize("kernel", list(Filter), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("size", "new"), [
    ((480, 640), (56, 84)), ((37, 53), (252, 252)), ((720, 1280), (700, 1288)), ((28, 300), (28, 28)),
], ids=str)  # fmt: skip
def test_resizes_and_patches(cuda: CUDABackend, kernel: Filter, size: tuple[int, int], new: tuple[int, int]) -> None:
    part = Patches(1, *new, patch=14, merge=2, temporal=2)
    assert_same_pixels(cuda, picture(1, *size), ImagePlan(kernel, (Resized(0, *new),), (part,), part.rows // 4, ""))


def test_tiles_behind_each_other(cuda: CUDABackend) -> None:
    steps = (Resized(0, 96, 160), Resized(1, 32, 32))
    parts = (Tiles(1, 3, 5, 32, 32), Tiles(2, 1, 1, 32, 32))
    assert_same_pixels(cuda, picture(2, 75, 130), ImagePlan(Filter.BICUBIC, steps, parts, 16, ""))


@pytest.mark.parametrize("dtype", [DataType.UINT8, DataType.FLOAT32])
@pytest.mark.parametrize("count", [1, 255, 256, 257, 100_003], ids=str)
def test_bytes_are_placed_from_any_start(cuda: CUDABackend, dtype: DataType, count: int) -> None:
    values = picture(3, 200, 200).reshape(-1)
    answers = []
    host = HostBackend()
    for backend in (cuda, host):
        source, out = backend.allocate(values.shape, DataType.UINT8), backend.allocate((count + 9,), dtype)
        source.write(values)
        backend.images.rearrange(source, out, Order((count,), (1,), 7, 5))
        answers.append(out.numpy().copy())
    np.testing.assert_array_equal(*answers)
    host.close()
