"""Raw camera images: every encoding from a known picture, padding, byte order, odd sizes, and refusals with numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgellm_ros.errors import RefusalCode
from edgellm_ros.vision.decode import ENCODINGS, ImageError, RawImage, decode_raw, to_eight_bits

cv2 = pytest.importorskip("cv2")

DISTINCT = (np.arange(18).reshape(3, 2, 3) * 14).astype(np.uint8)  # 2 wide, 3 high, every value another
GREY = np.repeat((np.arange(6).reshape(3, 2, 1) * 40).astype(np.uint8), 3, axis=2)
BARS = [(255, 255, 255), (255, 255, 0), (0, 255, 255), (0, 255, 0), (255, 0, 255), (255, 0, 0), (0, 0, 255), (0, 0, 0)]


def raw(pixels: np.ndarray, encoding: str, *, padding: int = 0, big_endian: bool = False) -> RawImage:
    """An image whose rows are ``pixels`` [H,W] or [H,W,C], with ``padding`` bytes of 0xAA behind each."""
    rows = np.ascontiguousarray(pixels).reshape(pixels.shape[0], -1)
    if rows.dtype == np.uint16 or rows.dtype == np.float32:
        rows = rows.astype(rows.dtype.newbyteorder(">" if big_endian else "<"))
    octets = rows.view(np.uint8)
    padded = np.full((len(octets), octets.shape[1] + padding), 0xAA, np.uint8)
    padded[:, : octets.shape[1]] = octets
    return RawImage(pixels.shape[0], pixels.shape[1], encoding, big_endian, padded.shape[1], padded.tobytes())


def with_alpha(pixels: np.ndarray) -> np.ndarray:
    return np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 7, pixels.dtype)], axis=2)


def eight_bit_forms() -> dict[str, np.ndarray]:
    return {
        "rgb8": DISTINCT,
        "bgr8": DISTINCT[..., ::-1],
        "8UC3": DISTINCT[..., ::-1],
        "rgba8": with_alpha(DISTINCT),
        "bgra8": with_alpha(DISTINCT[..., ::-1]),
        "8UC4": with_alpha(DISTINCT[..., ::-1]),
        "mono8": GREY[..., 0],
        "8UC1": GREY[..., 0],
    }


@pytest.mark.parametrize("padding", [0, 5, 12], ids=["tight", "five bytes", "whole pixels"])
@pytest.mark.parametrize("encoding", eight_bit_forms())
def test_eight_bit_encodings_give_the_same_array_and_padding_is_never_seen(encoding, padding):
    """IMG-1, IMG-2."""
    found = decode_raw(raw(eight_bit_forms()[encoding], encoding, padding=padding))
    assert found.flags.c_contiguous and found.dtype == np.uint8
    wanted = GREY if encoding in ("mono8", "8UC1") else DISTINCT
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("encoding", ["mono16", "16UC1", "rgb16", "bgr16", "16UC3", "rgba16", "bgra16", "16UC4"])
def test_sixteen_bits_are_scaled_to_eight_in_either_byte_order(encoding, padding, big_endian):
    """IMG-3."""
    grey = encoding in ("mono16", "16UC1")
    wanted = GREY if grey else DISTINCT
    pixels = wanted.astype(np.uint16) * 257
    pixels = pixels[..., 0] if grey else pixels
    if not grey and not encoding.startswith("rgb"):
        pixels = pixels[..., ::-1]
    if encoding in ("rgba16", "bgra16", "16UC4"):
        pixels = with_alpha(pixels)
    assert np.array_equal(decode_raw(raw(pixels, encoding, padding=padding, big_endian=big_endian)), wanted)


def test_sixteen_to_eight_bits_divides_by_257_and_rounds():
    values = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(to_eight_bits(values), ((values.astype(np.int64) * 2 + 257) // 514).astype(np.uint8))


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
def test_metres_look_as_the_same_depth_in_millimetres(big_endian):
    metres = np.array([[0.0, 1.0, 65.0], [np.nan, -1.0, np.inf]], np.float32)
    millimetres = np.array([[0, 1000, 65000], [0, 0, 0]], np.uint16)
    found = decode_raw(raw(metres, "32FC1", big_endian=big_endian))
    assert np.array_equal(found, decode_raw(raw(millimetres, "16UC1")))
    assert found[0, :, 0].tolist() == [0, 4, 253]


def test_a_signalling_nan_is_black_and_nothing_is_printed():
    octets = np.array([0x7F800001, 0x3F800000], "<u4").tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode_raw(RawImage(1, 2, "32FC1", False, 8, octets))
    assert found[0, :, 0].tolist() == [0, 4]


def bars(height: int, width: int) -> np.ndarray:
    return np.repeat(np.repeat(np.array([BARS], np.uint8), width // 8, axis=1), height, axis=0)


def studio(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Y, U, V of BT.601 in limited range, unrounded."""
    red, green, blue = (rgb[..., channel].astype(np.float64) / 255 for channel in range(3))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    chroma = (0.5 * (blue - luma) / (1 - 0.114), 0.5 * (red - luma) / (1 - 0.299))
    return 16 + 219 * luma, 128 + 224 * chroma[0], 128 + 224 * chroma[1]


def yuv_rows(encoding: str, rgb: np.ndarray) -> np.ndarray:
    """The buffer's rows of a camera with this encoding."""
    y, u, v = (np.rint(plane).astype(np.uint8) for plane in studio(rgb))
    height, width = y.shape
    if encoding in ("nv12", "nv21", "nv24"):
        step = 1 if encoding == "nv24" else 2
        planes = (v, u) if encoding == "nv21" else (u, v)
        chroma = np.stack([plane[::step, ::step] for plane in planes], axis=2)
        return np.concatenate([y, chroma.reshape(-1, width)])
    shared = np.stack([u[:, ::2], v[:, ::2]], axis=2).reshape(height, width)
    pair = (shared, y) if encoding in ("yuv422", "uyvy") else (y, shared)
    return np.stack(pair, axis=2).reshape(height, 2 * width)


YUV = ("yuv422", "uyvy", "yuv422_yuy2", "yuyv", "nv12", "nv21")


@pytest.mark.parametrize(("encoding", "padding"), [*((name, pad) for name in YUV for pad in (0, 4)), ("nv24", 0)])
def test_colour_bars_in_yuv_come_back_within_two_levels(encoding, padding):
    """IMG-4."""
    wanted = bars(6, 64)
    rows = yuv_rows(encoding, wanted)
    image = raw(rows, encoding, padding=padding)
    image = RawImage(6, 64, encoding, False, image.step, image.data)
    assert np.abs(decode_raw(image).astype(int) - wanted).max() <= 2


PATTERNS = {"rggb": "RGGB", "bggr": "BGGR", "gbrg": "GBRG", "grbg": "GRBG"}


@pytest.mark.parametrize("size", [(12, 96), (13, 97)], ids=["even", "odd"])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_colour_bars_in_a_bayer_mosaic_come_back_within_two_levels(pattern, bits, size):
    """IMG-4; inside the bars, where neighbours have the same colour."""
    rgb = np.zeros((*size, 3), np.uint8)
    rgb[:12, :96] = bars(12, 96)
    mosaic = np.empty(size, np.uint16 if bits == 16 else np.uint8)
    for index, colour in enumerate(PATTERNS[pattern]):
        row, column = divmod(index, 2)
        mosaic[row::2, column::2] = rgb[row::2, column::2, "RGB".index(colour)]
    if bits == 16:
        mosaic *= 257
    found = decode_raw(raw(mosaic, f"bayer_{pattern}{bits}", padding=3))
    for bar, colour in enumerate(BARS):
        inside = found[2:10, bar * 12 + 3 : bar * 12 + 9].astype(int)
        assert np.abs(inside - colour).max() <= 2


@pytest.mark.parametrize(("encoding", "words"), [
    ("", ["encoding empty", "rgb8"]),
    ("jpeg", ["'jpeg'", "rgb8"]),
    ("RGB8", ["'RGB8'", "'rgb8' is one"]),
    ("8uc3", ["'8UC3' is one"]),
    ("64FC1", ["'64FC1'"]),
    ("32SC1", ["'32SC1'"]),
    ("rgb8\n\x1b[31m" + "x" * 500, ["..."]),
])  # fmt: skip
def test_an_encoding_that_is_none_is_refused_by_name(encoding, words):
    """IMG-5."""
    with pytest.raises(ImageError) as refusal:
        decode_raw(RawImage(2, 2, encoding, False, 6, bytes(12)))
    assert refusal.value.code is RefusalCode.BAD_IMAGE
    assert all(word in str(refusal.value) for word in words)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(("image", "numbers"), [
    (RawImage(480, 640, "mono16", False, 1280, b""), "0 bytes of data; want 614400"),
    (RawImage(0, 640, "rgb8", False, 1920, b""), "640 by 0 pixels has none"),
    (RawImage(480, 0, "rgb8", False, 0, b""), "0 by 480 pixels has none"),
    (RawImage(2, 2, "rgb8", False, 6, bytes(11)), "has 11 bytes of data; want 12"),
    (RawImage(2, 2, "rgb8", False, 0, bytes(12)), "step of 0 bytes; want at least 6"),
    (RawImage(1080, 1920, "rgb8", False, 3840, bytes(10)), "step of 3840 bytes; want at least 5760"),
    (RawImage(2, 3, "yuv422", False, 6, bytes(12)), "odd width of 3"),
    (RawImage(3, 2, "nv12", False, 2, bytes(12)), "odd height of 3"),
    (RawImage(2, 2, "nv12", False, 2, bytes(5)), "has 5 bytes of data; want 6"),
    (RawImage(2, 2, "nv24", False, 3, bytes(18)), "rows of 2 unpadded"),
    (RawImage(3, 3, "bayer_rggb8", False, 3, bytes(9)), "height of 3; this encoding wants at least 4"),
    (RawImage(60_000, 60_000, "rgb8", False, 180_000, b""), "3600000000 pixels; want at most 16777216"),
])  # fmt: skip
def test_numbers_that_do_not_fit_are_refused_with_them(image, numbers):
    """IMG-6."""
    with pytest.raises(ImageError) as refusal:
        decode_raw(image)
    assert numbers in str(refusal.value)


def test_the_limit_of_pixels_is_the_callers():
    image = raw(DISTINCT, "rgb8")
    assert decode_raw(image, max_pixels=6).shape == (3, 2, 3)
    with pytest.raises(ImageError, match="6 pixels; want at most 5"):
        decode_raw(image, max_pixels=5)


def test_bytes_behind_the_last_row_are_ignored():
    image = raw(DISTINCT, "rgb8")
    longer = RawImage(image.height, image.width, "rgb8", False, image.step, image.data + b"more")
    assert np.array_equal(decode_raw(longer), DISTINCT)


def test_tight_rgb8_is_a_view_and_costs_nothing():
    image = raw(DISTINCT, "rgb8")
    assert np.shares_memory(decode_raw(image), np.frombuffer(image.data, np.uint8))


SIDES = some.integers(-1, 9)


@given(some.sampled_from(ENCODINGS), SIDES, SIDES, some.integers(-1, 80), some.binary(max_size=700))
def test_whatever_the_numbers_are_there_is_an_array_or_a_refusal(encoding, height, width, step, data):
    try:
        found = decode_raw(RawImage(height, width, encoding, False, step, data))
    except ImageError:
        return
    assert found.shape == (height, width, 3)
    assert found.dtype == np.uint8
