"""Camera images to uint8 RGB [H,W,3]: every encoding either becomes a stated array or is refused by name, with numbers.

| encoding | becomes |
|---|---|
| rgb8, bgr8, rgba8, bgra8 | its colours; alpha is dropped, not blended |
| 8UC3, 8UC4 | read as bgr8 and bgra8, OpenCV's own order |
| mono8, 8UC1 | grey |
| rgb16, bgr16, rgba16, bgra16, 16UC3, 16UC4, mono16, 16UC1 | 65535 is 255, rounded; either byte order |
| 32FC1 | metres, shown as 16UC1 carries them in millimetres; what is no number, negative or too far is black |
| yuv422, uyvy, yuv422_yuy2, yuyv, nv12, nv21, nv24 | BT.601, limited range |
| bayer_rggb8, bayer_bggr8, bayer_gbrg8, bayer_grbg8, and the same with 16 | bilinear demosaic |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import RefusalCode, RequestError
from ..json_values import plain_text, shown
from .opencv import opencv

MAX_PIXELS = 16_777_216  # unless the caller says otherwise
SMALLEST_BAYER = 4  # rows and columns that demosaicing needs
MILLIMETRES = 1000


@dataclass(frozen=True)
class RawImage:
    """The fields of a sensor_msgs/Image that describe its pixels; ``data`` is anything with a buffer of bytes."""

    height: int
    width: int
    encoding: str
    big_endian: bool
    step: int
    data: Any


class ImageError(RequestError):
    """An image that cannot be used; the sentence names what it has and what was wanted."""

    default_code = RefusalCode.BAD_IMAGE


@dataclass(frozen=True)
class _Layout:
    """``row_bytes`` of ``width`` pixels, ``planes``: rows of the whole buffer per row of pixels."""

    bytes_per_pixel: int
    convert: Callable[[np.ndarray, Any], np.ndarray]  # of [rows, width, channels] or the raw rows, and cv2
    channels: int = 1
    wide: bool = False  # 16 bits per channel
    planes: float = 1.0
    even: tuple[bool, bool] = (False, False)  # height, width
    smallest: int = 1
    real: bool = False  # 32-bit floats
    tight: bool = False  # rows may not be padded: how the planes behind the first would be padded is nowhere said


def to_eight_bits(values: np.ndarray) -> np.ndarray:
    """uint16 to uint8, 65535 to 255, rounded; C-contiguous."""
    wide = values.astype(np.uint32)
    wide *= 255  # with the next two lines the same as dividing by 257 and rounding, in a third of the time
    wide += 32895
    wide >>= 16
    return wide.astype(np.uint8)


def grey_to_rgb(plane: np.ndarray) -> np.ndarray:
    """uint8 [H,W] to [H,W,3]."""
    cv2 = opencv()
    rgb: np.ndarray = cv2.cvtColor(np.ascontiguousarray(plane), cv2.COLOR_GRAY2RGB)
    return rgb


def depth_to_rgb(millimetres: np.ndarray) -> np.ndarray:
    """Float millimetres [H,W] to grey as 16UC1 would be shown; what is no number, negative or too far is black."""
    known = np.isfinite(millimetres) & (millimetres >= 0) & (millimetres <= 65535)
    return grey_to_rgb(to_eight_bits(np.where(known, millimetres, 0).round().astype(np.uint16)))


def _same(pixels: np.ndarray, cv2: Any) -> np.ndarray:
    return pixels


def _grey(pixels: np.ndarray, cv2: Any) -> np.ndarray:
    return grey_to_rgb(pixels[..., 0])


def _metres(pixels: np.ndarray, cv2: Any) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return depth_to_rgb(pixels[..., 0].astype(np.float64) * MILLIMETRES)


def _colours(code: str) -> Callable[[np.ndarray, Any], np.ndarray]:
    def convert(pixels: np.ndarray, cv2: Any) -> np.ndarray:
        rgb: np.ndarray = cv2.cvtColor(np.ascontiguousarray(pixels), getattr(cv2, code))
        return rgb

    return convert


def _nv24(rows: np.ndarray, cv2: Any) -> np.ndarray:
    height, width = rows.shape[0] // 3, rows.shape[1]
    chroma = np.ascontiguousarray(rows[height:]).reshape(height, width, 2)
    # three channels in full would be read as full range; twice the size is the subsampled layout OpenCV knows
    packed = np.empty((height, width, 2, 2), np.uint8)
    packed[..., 0] = rows[:height, :, None]
    packed[..., 1] = chroma
    wide = cv2.cvtColor(packed.reshape(height, 2 * width, 2), cv2.COLOR_YUV2RGB_YUYV)
    return np.ascontiguousarray(wide[:, ::2])


def _layouts() -> dict[str, _Layout]:
    table = {
        "rgb": ("", 3),
        "bgr": ("COLOR_BGR2RGB", 3),
        "rgba": ("COLOR_RGBA2RGB", 4),
        "bgra": ("COLOR_BGRA2RGB", 4),
    }
    layouts = {}
    for name, (code, channels) in table.items():
        convert = _colours(code) if code else _same
        layouts[f"{name}8"] = _Layout(channels, convert, channels)
        layouts[f"{name}16"] = _Layout(2 * channels, convert, channels, wide=True)
    for name, alias in (("8UC3", "bgr8"), ("8UC4", "bgra8"), ("16UC3", "bgr16"), ("16UC4", "bgra16")):
        layouts[name] = layouts[alias]
    for name in ("mono8", "8UC1"):
        layouts[name] = _Layout(1, _grey)
    for name in ("mono16", "16UC1"):
        layouts[name] = _Layout(2, _grey, wide=True)
    layouts["32FC1"] = _Layout(4, _metres, real=True)
    for name, code in (("yuv422", "UYVY"), ("uyvy", "UYVY"), ("yuv422_yuy2", "YUYV"), ("yuyv", "YUYV")):
        layouts[name] = _Layout(2, _colours(f"COLOR_YUV2RGB_{code}"), 2, even=(False, True))
    for name in ("nv12", "nv21"):
        convert = _colours(f"COLOR_YUV2RGB_{name.upper()}")
        layouts[name] = _Layout(1, convert, 0, planes=1.5, even=(True, True))
    layouts["nv24"] = _Layout(1, _nv24, 0, planes=3.0, tight=True)
    # OpenCV names a pattern by its second row and column
    for name, code in (("rggb", "BG"), ("bggr", "RG"), ("gbrg", "GR"), ("grbg", "GB")):
        convert = _colours(f"COLOR_Bayer{code}2RGB")
        layouts[f"bayer_{name}8"] = _Layout(1, convert, smallest=SMALLEST_BAYER)
        layouts[f"bayer_{name}16"] = _Layout(2, convert, wide=True, smallest=SMALLEST_BAYER)
    return layouts


_LAYOUTS = _layouts()
ENCODINGS = tuple(_LAYOUTS)


def decode_raw(image: RawImage, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """uint8 RGB [H,W,3], C-contiguous; for rgb8 without padding a view of ``data``, so it may be read-only.

    Bytes behind the last row are ignored.

    :raises ImageError: the encoding is none of ``ENCODINGS``, or the numbers do not fit each other or the limit.
    """
    layout = _LAYOUTS.get(image.encoding)
    if layout is None:
        raise ImageError(_unknown_encoding(image.encoding))
    name = f"The {image.encoding} image of {image.width} by {image.height} pixels"
    _check_size(name, image.height, image.width, max_pixels)
    row_bytes = image.width * layout.bytes_per_pixel
    if image.step < row_bytes:
        raise ImageError(f"{name} has a step of {image.step} bytes; want at least {row_bytes}.")
    for side, value, even in (("height", image.height, layout.even[0]), ("width", image.width, layout.even[1])):
        if even and value % 2:
            raise ImageError(f"{name} has an odd {side} of {value}; this encoding wants an even one.")
        if value < layout.smallest:
            raise ImageError(f"{name} has a {side} of {value}; this encoding wants at least {layout.smallest}.")
    if layout.tight and image.step != row_bytes:
        raise ImageError(f"{name} has a step of {image.step} bytes; this encoding wants rows of {row_bytes} unpadded.")
    rows = int(image.height * layout.planes)
    found = memoryview(image.data).nbytes
    if found < image.step * rows:
        raise ImageError(
            f"{name} with a step of {image.step} bytes has {found} bytes of data; want {image.step * rows}."
        )
    return _pixels(image, layout, rows, row_bytes)


def _pixels(image: RawImage, layout: _Layout, rows: int, row_bytes: int) -> np.ndarray:
    cv2 = opencv()
    table = np.frombuffer(image.data, np.uint8, image.step * rows).reshape(rows, image.step)[:, :row_bytes]
    if not layout.channels:  # planes below each other; the converter knows them
        return np.ascontiguousarray(layout.convert(np.ascontiguousarray(table), cv2))
    if layout.wide or layout.real:
        order = ">" if image.big_endian else "<"
        table = np.ascontiguousarray(table).view(f"{order}{'f4' if layout.real else 'u2'}")
    pixels = table.reshape(rows, image.width, layout.channels)
    if layout.wide:
        pixels = pixels.astype(np.uint16)
        if layout.smallest == 1:  # a grey or colour value stands for itself; a mosaic is blended in full depth first
            pixels = to_eight_bits(pixels)
    converted = layout.convert(pixels, cv2)
    if converted.dtype == np.uint16:
        converted = to_eight_bits(converted)
    return np.ascontiguousarray(converted)


def _check_size(name: str, height: int, width: int, max_pixels: int) -> None:
    if height < 1 or width < 1:
        raise ImageError(f"{name} has none; want at least 1 by 1.")
    if height * width > max_pixels:
        raise ImageError(
            f"{name} has {height * width} pixels; want at most {max_pixels}: lower the camera's resolution or "
            "raise images.max_pixels."
        )


def _unknown_encoding(encoding: str) -> str:
    lower = {name.lower(): name for name in _LAYOUTS}
    near = lower.get(encoding.lower().strip())
    hint = f"; names are case-sensitive, {near!r} is one" if near else ""
    found = shown(plain_text(encoding)) if encoding else "empty"
    return f"An image has the encoding {found}{hint}; want one of {', '.join(ENCODINGS)}."
