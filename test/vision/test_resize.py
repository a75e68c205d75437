"""Resizing against the sums that Pillow makes, one output pixel after the other, in whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.vision.resize import Filter, lines_of, resize, resize_lines
from edgellm_ros.vision.resize_runs import SLACK, runs
from edgellm_ros.vision.resize_taps import FRACTION_BITS, taps

pytest.importorskip("cv2")

RATIOS = [(720, 1152), (1152, 512), (1280, 2048), (2048, 512), (480, 448), (448, 480), (97, 31), (31, 97), (57, 1),
          (1, 9), (3, 5), (1001, 13), (700, 699)]  # fmt: skip


def pass_of(image: np.ndarray, new_length: int, kernel: Filter) -> np.ndarray:
    """uint8 [lines,...] to uint8 [new lines,...]."""
    lows, weights = taps(len(image), new_length, kernel).whole()
    result = np.empty((new_length, *image.shape[1:]), np.uint8)
    for place, low, line in zip(result, lows, weights, strict=True):
        part = image[low : low + len(line)].astype(np.int64)
        total = np.tensordot(line[: len(part)].astype(np.int64), part, 1)
        place[...] = np.clip((total + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS, 0, 255)
    return result


def hard(height: int, width: int) -> np.ndarray:
    """Black and white noise on the left, which overshoots both ends of the scale; a gradient with ties on the right."""
    image = np.random.default_rng(height * width).integers(0, 2, (height, width, 3), dtype=np.uint8) * 255
    half = width // 2
    image[:, half:] = (np.arange(height)[:, None, None] + np.arange(half, width)[None, :, None]) % 256
    return image


@pytest.mark.parametrize("kernel", [Filter.LANCZOS, Filter.BICUBIC, Filter.BILINEAR], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("length", "new_length"), RATIOS)
def test_both_passes_make_the_sums_of_pillow(length, new_length, kernel):
    for shape, new_shape in (((length, 23), (new_length, 23)), ((23, length), (23, new_length))):
        image = hard(*shape)
        axis = shape.index(length)
        wanted = np.moveaxis(pass_of(np.moveaxis(image, axis, 0), new_length, kernel), 0, axis)
        difference = np.abs(resize(image, *new_shape, kernel).astype(int) - wanted)
        assert difference.max() <= (kernel is Filter.LANCZOS)  # whose 32-bit sums may lie on the other side of a tie
        assert (difference > 0).mean() < 3e-3


def test_columns_come_before_rows():
    image = hard(40, 64)
    wide = pass_of(image.transpose(1, 0, 2), 103, Filter.BICUBIC).transpose(1, 0, 2)
    wanted = pass_of(wide, 64, Filter.BICUBIC)
    tall = pass_of(image, 64, Filter.BICUBIC)
    otherwise = pass_of(tall.transpose(1, 0, 2), 103, Filter.BICUBIC).transpose(1, 0, 2)
    assert np.abs(otherwise.astype(int) - wanted).max() > 9
    assert np.array_equal(resize(image, 64, 103, Filter.BICUBIC), wanted)


@pytest.mark.parametrize("along", [True, False], ids=["pixels", "lines"])
@pytest.mark.parametrize(("length", "new_length"), RATIOS)
def test_runs_make_every_pixel_once_from_windows_that_reach_it(length, new_length, along):
    table = taps(length, new_length, Filter.LANCZOS)
    made = 0
    for run in runs(length, new_length, Filter.LANCZOS, np.dtype(np.float32), along=along):
        assert run.first == made
        made += run.made
        assert run.window <= np.ceil(run.together * table.scale + 2 * table.reach) + 1 + SLACK
        for product, weights in enumerate(run.weights.transpose(0, 2, 1) if along else run.weights):
            first = run.first + product * run.together
            for pixel, line in enumerate(weights[: new_length - first], first):
                low = run.start + product * run.step
                window = np.zeros(length)
                inside = slice(max(low, 0), min(low + run.window, length))
                window[inside] = line[inside.start - low : inside.stop - low]
                wanted = np.zeros(length)
                wanted[table.lows[pixel] : table.highs[pixel]] = table.weights[
                    pixel, : table.highs[pixel] - table.lows[pixel]
                ]
                assert np.array_equal(window, wanted.astype(np.float32))
    assert made >= new_length


def test_usual_ratios_are_one_run_and_every_ratio_few():
    for lengths in ((1280, 2048), (2048, 512), (640, 2048), (1920, 2048), (640, 448)):
        assert len(runs(*lengths, Filter.LANCZOS, np.dtype(np.float32), along=True)) == 1
    for new_length in range(200, 2000, 37):
        assert len(runs(1280, new_length, Filter.LANCZOS, np.dtype(np.float32), along=True)) <= 1 + new_length / 100


def test_what_does_not_change_is_not_copied_and_borrowed_memory_is_used_again():
    image = hard(30, 40)
    lines = lines_of(image)
    assert np.array_equal(lines.transpose(0, 2, 1), image)
    assert resize(image, 30, 40, Filter.BICUBIC) is image
    assert resize_lines(lines, 30, 40, Filter.BICUBIC) is lines
    for size in ((30, 20), (20, 40), (20, 20)):
        kept = resize_lines(lines, *size, Filter.BICUBIC)
        lent = resize_lines(lines, *size, Filter.BICUBIC, borrowed="here")
        assert np.array_equal(kept, lent)
        assert np.shares_memory(lent, resize_lines(lines, *size, Filter.BICUBIC, borrowed="here"))
        assert not np.shares_memory(kept, resize_lines(lines, *size, Filter.BICUBIC))
