"""Compressed camera images to uint8 RGB [H,W,3]: JPEG, PNG and compressed depth, told apart by their content.

The label of a message is only believed where the content does not say: cameras and bridges mislabel often. Sizes are
read from the header and checked before anything is allocated. Orientation marks are ignored, so that an image has the
geometry of the raw image beside it. PNG with 16 bits is scaled as raw 16-bit images are, alpha dropped. JPEG is grey or
has three colours: inks (CMYK) are refused, since files do not say reliably which way round they are.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from ..json_values import plain_text, shown
from .decode import (
    MAX_PIXELS,
    MILLIMETRES,
    ImageError,
    depth_to_rgb,
    grey_to_rgb,
    to_eight_bits,
)
from .opencv import opencv

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_END_OF_JPEG = b"\xff\xd9"
_SCAN = b"\xff\xda"
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers that carry a size
_ARITHMETIC = 0xC9  # and beyond: frames whose blocks may take less than a bit
_MOST_SCANS = 100  # each costs a pass over the whole image; progressive files have about ten
_ANIMATION = {b"acTL", b"fcTL", b"fdAT"}  # OpenCV fills what their frames leave out with whatever was in memory
_LONGEST_SIDE = 1_000_000  # of a PNG, for the library behind OpenCV
_DEPTH_HEADER = 12  # bytes before the PNG of a compressed depth image: its kind and two quantisation numbers


def decode_compressed(label: str, data: Any, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """``label`` is the ``format`` of a sensor_msgs/CompressedImage, ``data`` anything with a buffer of bytes.

    :raises ImageError: the content is neither JPEG, PNG nor compressed depth, is cut off, or is larger than the limit.
    """
    view = memoryview(data).cast("B")
    head = bytes(view[: _DEPTH_HEADER + len(_PNG)])
    if head.startswith(_JPEG):
        _check_jpeg(view, max_pixels)
        return _from_jpeg(view)
    if head.startswith(_PNG):
        _check_png(view, max_pixels)
        return _from_png(_decoded(view, "PNG"))
    if head[_DEPTH_HEADER:] == _PNG:
        _check_png(view[_DEPTH_HEADER:], max_pixels)
        return _from_depth(label, view)
    raise ImageError(_unknown(label, view))


def _check_pixels(kind: str, height: int, width: int, max_pixels: int) -> None:
    if height < 1 or width < 1:
        raise ImageError(f"A {kind} image claims {width} by {height} pixels; want at least 1 by 1.")
    if height * width > max_pixels:
        raise ImageError(
            f"A {kind} image claims {width} by {height} pixels, {height * width} in all; want at most {max_pixels}: "
            "lower the camera's resolution or raise images.max_pixels."
        )


def _check_jpeg(view: memoryview, max_pixels: int) -> None:
    """The size within the limit, in a header of 8 bits and 1 or 3 channels, and scans to the end, with data for all."""
    place, blocks = 2, -1
    while place + 4 <= len(view):
        if view[place] != 0xFF:
            raise ImageError(f"A JPEG image is damaged at byte {place} of {len(view)}.")
        marker = view[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # marks without a length
            place += 2
            continue
        (length,) = struct.unpack_from(">H", view, place + 2)
        if marker in _FRAMES:
            if length < 8 or place + 10 > len(view):
                break
            bits, height, width, channels = struct.unpack_from(">BHHB", view, place + 4)
            if bits != 8:
                raise ImageError(f"A JPEG image has {bits} bits per channel; want 8.")
            if channels not in (1, 3):
                raise ImageError(f"A JPEG image has {channels} channels; want 1 (grey) or 3 (colours).")
            _check_pixels("JPEG", height, width, max_pixels)
            blocks = 0 if marker >= _ARITHMETIC else -(-height // 8) * -(-width // 8)
        if marker == 0xDA:
            if blocks < 0 or not _has_scans(bytes(view[place:]), blocks):
                break
            return
        place += 2 + length
    raise ImageError(f"A JPEG image of {len(view)} bytes ends before its image does; it was cut off on its way.")


def _has_scans(data: bytes, blocks: int) -> bool:
    """Whether what follows the headers has an end, and a bit for each block of the image at least."""
    scans = data.count(_SCAN)
    if scans > _MOST_SCANS:
        raise ImageError(f"A JPEG image has {scans} scans; want at most {_MOST_SCANS}.")
    return data.rfind(_END_OF_JPEG) >= 0 and 8 * len(data) >= blocks


def _check_png(view: memoryview, max_pixels: int) -> None:
    """The size within the limit, and every chunk up to the last, each with its checksum; none of an animation."""
    place = len(_PNG)
    while place + 12 <= len(view):
        length, name = struct.unpack_from(">I4s", view, place)
        if place == len(_PNG):
            if name != b"IHDR" or length < 8 or place + 16 > len(view):
                raise ImageError(f"A PNG image of {len(view)} bytes starts with no header; it is damaged.")
            width, height = struct.unpack_from(">II", view, place + 8)
            _check_pixels("PNG", height, width, max_pixels)
            if max(height, width) > _LONGEST_SIDE:
                raise ImageError(
                    f"A PNG image claims {width} by {height} pixels; want at most {_LONGEST_SIDE} on a side."
                )
        end = place + 8 + length
        if end + 4 > len(view):
            break
        if zlib.crc32(view[place + 4 : end]) != struct.unpack_from(">I", view, end)[0]:
            raise ImageError(f"A PNG image of {len(view)} bytes is damaged between bytes {place} and {end + 4}.")
        if name in _ANIMATION:
            raise ImageError(f"A PNG image of {len(view)} bytes is animated; want a still one.")
        if name == b"IEND":
            return
        place = end + 4
    raise ImageError(f"A PNG image of {len(view)} bytes ends before its image does; it was cut off on its way.")


def _decoded(view: memoryview, kind: str) -> np.ndarray:
    cv2 = opencv()
    flags = cv2.IMREAD_UNCHANGED if kind == "PNG" else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image: np.ndarray | None = cv2.imdecode(np.frombuffer(view, np.uint8), flags)
    except cv2.error as error:
        raise ImageError(f"A {kind} image of {len(view)} bytes does not decode ({plain_text(error)[:80]}).") from None
    if image is None:
        raise ImageError(f"A {kind} image of {len(view)} bytes does not decode; it is damaged.")
    return image


def _from_jpeg(view: memoryview) -> np.ndarray:
    cv2 = opencv()
    rgb: np.ndarray = cv2.cvtColor(_decoded(view, "JPEG"), cv2.COLOR_BGR2RGB)
    return rgb


def _from_png(image: np.ndarray) -> np.ndarray:
    if image.dtype == np.uint16:
        image = to_eight_bits(image)
    if image.ndim == 2:
        return grey_to_rgb(image)
    return np.ascontiguousarray(image[..., 2::-1])


def _from_depth(label: str, view: memoryview) -> np.ndarray:
    """Millimetres as they are (16UC1), or metres behind a quantised inverse (32FC1)."""
    _, first, second = struct.unpack_from("<iff", view)
    image = _decoded(view[_DEPTH_HEADER:], "PNG")
    if image.ndim != 2:
        raise ImageError(f"A compressed depth image holds {image.shape[2]} channels; want one.")
    if not label.strip().startswith("32FC1"):
        return grey_to_rgb(to_eight_bits(image) if image.dtype == np.uint16 else image)
    values = image.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        metres = np.where(values > 0, first / (values - second), np.nan)
    return depth_to_rgb(metres * MILLIMETRES)


def _unknown(label: str, view: memoryview) -> str:
    if not len(view):
        return f"A compressed image labelled {shown(plain_text(label))} is empty; want JPEG or PNG."
    if "compressedDepth" in label:
        return (
            f"A compressed depth image labelled {shown(plain_text(label))} holds no PNG behind its header; want "
            "PNG: set the publisher's format to png."
        )
    start = bytes(view[:8]).hex(" ")
    return (
        f"A compressed image labelled {shown(plain_text(label))} starts with the bytes {start}; want JPEG (ff d8 ff) "
        "or PNG (89 50 4e 47)."
    )
