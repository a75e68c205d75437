"""Images prepared by a device's kernels against the processors: resizes, tiles, patches, and whole requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pictures import picture
from pretend_gpu import pretend_backend
from processor_cases import CASES, SAMPLES, Case
from test_processors import SMALL, grey_levels, write_folder

from edgellm_ros.backends.base import Backend, DataType
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.image_kernels import Order
from edgellm_ros.vision.device_images import DeviceImages
from edgellm_ros.vision.image_plan import carry_out
from edgellm_ros.vision.processor import PlannedProcessor, open_processor

pytest.importorskip("cv2")

QUICK = [*SMALL, *(case for case in CASES if case.name in ("paligemma", "qwen2.5-vl-limited"))]


def prepared(processor: PlannedProcessor, images: list[np.ndarray], backend: Backend) -> list[np.ndarray]:
    device = DeviceImages(backend)
    return [device.prepare(image, processor.plan(*image.shape[:2])).numpy() for image in images]


@pytest.mark.parametrize("case", [
    pytest.param(case, id=case.name, marks=() if case in QUICK else pytest.mark.slow) for case in CASES
])  # fmt: skip
def test_levels_are_those_of_the_processor_and_of_the_reference(case: Case, tmp_path: Path) -> None:
    processor = open_processor(write_folder(tmp_path, case), normalise=False)
    assert isinstance(processor, PlannedProcessor)
    images = [picture(*size) for size in case.sizes]
    found = np.concatenate(prepared(processor, images, CPUBackend(1)))
    wanted = processor.process(images).inputs["pixel_values"]
    assert found.shape == wanted.shape and found.dtype == np.uint8
    difference = np.abs(found.astype(np.int16) - wanted)
    assert difference.max() <= 2  # ties of rounding, of up to six passes one behind the other
    assert (difference > 0).mean() < 0.005 and (difference > 1).mean() < 1e-5
    places = np.random.Generator(np.random.PCG64(len(case.name))).integers(0, found.size, SAMPLES)
    with np.load(Path(__file__).with_name("processors.npz")) as stored:
        reference = grey_levels(case, stored[case.name], places, list(found.shape))
    assert np.abs(found.reshape(-1)[places] - reference).max() < 1.01


@pytest.mark.parametrize("case", [case for case in CASES if "small" in case.name], ids=lambda case: case.name)
def test_a_gpu_gives_the_bytes_of_the_host_kernels(case: Case, tmp_path: Path) -> None:
    processor = open_processor(write_folder(tmp_path, case), normalise=False)
    assert isinstance(processor, PlannedProcessor)
    images = [picture(*size) for size in case.sizes[:4]]
    gpu = pretend_backend()
    for found, wanted in zip(prepared(processor, images, gpu), prepared(processor, images, CPUBackend(1)), strict=True):
        assert np.array_equal(found, wanted)
    gpu.close()


@pytest.mark.parametrize("name", ["smolvlm-small", "qwen3-vl-small"])
def test_a_plan_on_the_host_may_write_into_memory_that_is_there(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    processor = open_processor(write_folder(tmp_path, case))
    assert isinstance(processor, PlannedProcessor)
    image = picture(40, 30)
    plan = processor.plan(40, 30)
    out = np.full(plan.shape, np.nan, np.float32)
    carry_out(plan, image, processor.table, out)
    assert np.array_equal(out, processor.process([image]).inputs["pixel_values"])


@pytest.mark.parametrize(("arguments", "sentence"), [
    (((4, 4), (1, 4), 0, 1), "want places inside both"), (((4, 5), (5, 1), 0, 0), "want places inside both"),
    (((2,) * 9, (0,) * 9, 0, 0), "at most 8 axes"), (((2, 2), (-1, 1), 2, 0), "want places inside both"),
])  # fmt: skip
@pytest.mark.parametrize("gpu", [False, True])
def test_places_outside_are_refused(arguments: tuple, sentence: str, gpu: bool) -> None:
    backend = pretend_backend() if gpu else CPUBackend(1)
    source, out = (backend.allocate((16,), DataType.UINT8) for _ in range(2))
    with pytest.raises(ValueError, match=sentence):
        backend.images.rearrange(source, out, Order(*arguments))
    backend.close()
