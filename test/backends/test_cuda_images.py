"""Images resized and cut by a GPU's kernels against the same work in NumPy, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.host_backend import HostBackend
from edgellm_ros.backends.image_kernels import Blend, Order, Spot
from edgellm_ros.vision.device_images import DeviceImages
from edgellm_ros.vision.device_letterbox import DeviceLetterbox
from edgellm_ros.vision.image_plan import ImagePlan, Patches, Resized, Tiles
from edgellm_ros.vision.processors.letterbox import LetterboxProcessor
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


SIZES = [
    (480, 640), (640, 480), (512, 512), (224, 224), (720, 1280), (1, 1), (1, 150), (150, 1), (2, 3), (7, 5), (37, 53),
    (223, 225), (511, 513), (448, 448), (300, 301),
]  # fmt: skip


def noise(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(("side", "centred", "smooth"), [
    ((512, 512), False, False), ((224, 224), True, False), ((224, 224), True, True), ((33, 70), True, False),
    ((33, 70), True, True), ((65, 31), False, False),
], ids=str)  # fmt: skip
def test_pictures_are_fitted_as_the_processor_fits_them(
    cuda: CUDABackend, side: tuple[int, int], centred: bool, smooth: bool
) -> None:
    cv2 = pytest.importorskip("cv2")
    processor = LetterboxProcessor(*side, centred, 1, smooth)
    fitting = DeviceLetterbox(cuda, processor)
    pixels = cuda.allocate((3, 3, *side), DataType.FLOAT32)
    for seed, size in enumerate(SIZES):
        images = [noise(seed, *size), picture(seed, *size), noise(seed, *SIZES[seed - 1])[:, ::-1]]
        kept = [image.copy() for image in images]
        pixels.write(np.full(pixels.shape, 7.0, np.float32))
        fitting.fill(images, pixels)
        for image in images:
            image[...] = 0  # a camera's next frame may come at once
        wanted = np.empty(pixels.shape, np.float32)
        processor.fill(kept, wanted)
        found = pixels.numpy()
        if smooth:
            np.testing.assert_array_equal(found, wanted, err_msg=str(size))
        else:
            # OpenCV without IPP, which leaves pictures of one line to it, weighs by places rounded to 32 bits
            near = 1e-5 if cv2.ipp.useIPP() and min(min(image.shape[:2]) for image in images) > 1 else 1e-3
            np.testing.assert_allclose(found, wanted, rtol=0, atol=near, err_msg=str(size))
    fitting.close()


def test_cameras_that_are_not_there_stay_as_they_are(cuda: CUDABackend) -> None:
    pytest.importorskip("cv2")
    fitting = DeviceLetterbox(cuda, LetterboxProcessor(16, 16, False, 1))
    pixels = cuda.allocate((3, 3, 16, 16), DataType.FLOAT32)
    pixels.write(np.full(pixels.shape, 7.0, np.float32))
    fitting.fill([noise(1, 20, 30), noise(2, 30, 20)], pixels.prefix((2, 3, 16, 16)))
    found = pixels.numpy()
    assert (found[2] == 7).all() and np.abs(found[:2]).max() <= 1
    fitting.close()


@pytest.mark.parametrize(("spot", "count", "kind"), [
    (Spot(2, 0, 0), 4, DataType.FLOAT32), (Spot(0, 5, 0), 4, DataType.FLOAT32), (Spot(0, 0, -1), 4, DataType.FLOAT32),
    (Spot(0, 0, 0), 9, DataType.FLOAT32), (Spot(0, 0, 0), 4, DataType.FLOAT16),
], ids=str)  # fmt: skip
def test_a_picture_beyond_its_place_is_refused(cuda: CUDABackend, spot: Spot, count: int, kind: DataType) -> None:
    host = HostBackend()
    for backend in (cuda, host):
        source, out = backend.allocate((6, 6, 3), DataType.UINT8), backend.allocate((2, 3, 8, 8), kind)
        blend = Blend(backend.allocate((count,), DataType.INT32), backend.allocate((count,), DataType.FLOAT32))
        with pytest.raises(ValueError, match=r"want uint8 \[H,W,3\]"):
            backend.images.letterbox(source, blend, blend, out, spot)
    host.close()
