"""Compressed camera images: content against label, cut files, bit depths, claims of size, orientation, depth."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from jpeg_bytes import flat_jpeg, progressive_jpeg, segment
from pictures import picture

from edgellm_ros.vision.decode import ImageError
from edgellm_ros.vision.decode_compressed import decode_compressed

cv2 = pytest.importorskip("cv2")

FLAT = np.zeros((16, 24, 3), np.uint8)
FLAT[...] = (200, 100, 30)  # RGB; JPEG keeps flat colour within a level or two


def encoded(kind: str, image: np.ndarray) -> bytes:
    """``image`` RGB, RGBA or grey."""
    bgr = image[..., ::-1] if image.ndim == 3 and image.shape[2] == 3 else image
    if image.ndim == 3 and image.shape[2] == 4:
        bgr = image[..., [2, 1, 0, 3]]
    return cv2.imencode(f".{kind}", np.ascontiguousarray(bgr))[1].tobytes()


@pytest.mark.parametrize(("content", "label"), [
    ("jpg", "png"), ("png", "jpeg"), ("jpg", ""), ("png", ""), ("jpg", "rgb8; jpeg compressed bgr8"),
    ("png", "bgr8; png compressed bgr8"), ("jpg", "jpeg"), ("png", "16UC1; compressedDepth png"), ("jpg", "\x1b[31m"),
])  # fmt: skip
def test_content_decides_and_colours_are_right(content, label):
    """IMG-7."""
    found = decode_compressed(label, encoded(content, FLAT))
    assert found.shape == FLAT.shape and found.flags.c_contiguous
    assert np.abs(found.astype(int) - FLAT).max() <= (3 if content == "jpg" else 0)


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9, 0.99])
def test_a_file_that_is_cut_off_is_refused(kind, share):
    """IMG-8."""
    data = encoded(kind, picture(120, 160))
    with pytest.raises(ImageError, match=r"cut off|damaged|bytes"):
        decode_compressed(kind, data[: int(len(data) * share)])


@pytest.mark.parametrize(("data", "words"), [
    (b"", "is empty"),
    (b"hello, this is text", "68 65 6c 6c 6f"),
    (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "52 49 46 46"),
])  # fmt: skip
def test_what_is_no_image_is_refused_by_its_first_bytes(data, words):
    """IMG-8."""
    with pytest.raises(ImageError, match=words):
        decode_compressed("jpeg", data)


def test_sixteen_bits_alpha_and_grey_decode_by_the_rules_of_raw_images():
    """IMG-8."""
    image = picture(20, 30)
    wide = image.astype(np.uint16) * 257
    assert np.array_equal(decode_compressed("png", encoded("png", wide)), image)
    assert np.array_equal(decode_compressed("png", encoded("png", wide[..., 0])), np.repeat(image[..., :1], 3, axis=2))
    alpha = np.concatenate([image, np.full((20, 30, 1), 9, np.uint8)], axis=2)
    assert np.array_equal(decode_compressed("png", encoded("png", alpha)), image)
    assert np.array_equal(decode_compressed("png", encoded("png", image[..., 0])), np.repeat(image[..., :1], 3, axis=2))
    grey = decode_compressed("jpeg", encoded("jpg", FLAT[..., 0]))
    assert grey.shape == FLAT.shape and np.abs(grey.astype(int) - 200).max() <= 1


@pytest.mark.parametrize(("values", "before", "colour"), [
    ([77], b"", [77, 77, 77]),
    ([100, 128, 128], b"", [100, 100, 100]),
    ([200, 100, 30], segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, 0)), [200, 100, 30]),  # RGB, not YCbCr
], ids=["grey", "YCbCr", "RGB"])  # fmt: skip
def test_channels_are_read_as_the_file_says(values, before, colour):
    found = decode_compressed("jpeg", flat_jpeg(values, before=before))
    assert found.shape == (8, 8, 3) and (found == colour).all()


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("inverted", [False, True], ids=["plain", "as Photoshop writes inks"])
def test_inks_and_other_channels_are_refused_by_their_number(count, inverted):
    mark = segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, 0)) if inverted else b""
    with pytest.raises(ImageError, match=rf"has {count} channels; want 1 \(grey\) or 3 \(colours\)"):
        decode_compressed("jpeg", flat_jpeg([10, 100, 200, 0, 5][:count], before=mark))


@pytest.mark.parametrize(("height", "whole"), [(8, True), (1000, False), (65_535, False)])
def test_a_jpeg_with_less_data_than_its_blocks_take_is_refused_and_nothing_made_up(height, whole):
    data = flat_jpeg([77], claimed_height=height)
    if whole:
        assert decode_compressed("jpeg", data).shape == (8, 8, 3)
        return
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match="ends before its image does"):
            decode_compressed("jpeg", data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_file_of_thousands_of_passes_is_refused_by_their_number():
    assert decode_compressed("jpeg", progressive_jpeg(64, 3)).shape == (64, 64, 3)
    with pytest.raises(ImageError, match="has 5001 scans; want at most 100"):
        decode_compressed("jpeg", progressive_jpeg(4096, 5000))


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


@pytest.mark.parametrize(("width", "height"), [(24, 16), (1, 1), (0, 0), (30_000, 30_000), (2**31 - 1, 2**31 - 1)])
@pytest.mark.parametrize("counted", [True, False])
def test_an_animation_is_refused_whatever_its_frames_claim(width, height, counted):
    still = encoded("png", FLAT)
    frame = chunk(b"acTL", struct.pack(">II", 2, 0)) if counted else b""
    frame += chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 10, 0, 0))
    place = still.index(b"IDAT") - 4
    with pytest.raises(ImageError, match="is animated; want a still one"):
        decode_compressed("png", still[:place] + frame + still[place:])


GREYS, COLOURS = [[0, 255], [51, 204]], [[[200, 100, 30], [0, 0, 255]], [[1, 2, 3], [255, 255, 255]]]


@pytest.mark.parametrize(("depth", "kind", "rows", "extra", "wanted"), [
    (1, 0, [b"\x40", b"\x80"], b"", [[0, 255], [255, 0]]),
    (2, 0, [b"\x30", b"\x90"], b"", [[0, 255], [170, 85]]),
    (4, 0, [b"\x0f", b"\x3c"], b"", GREYS),
    (8, 0, [b"\x00\xff", b"\x33\xcc"], chunk(b"tRNS", b"\x00\x33"), GREYS),
    (16, 0, [b"\x00\x00\xff\xff", b"\x33\x33\xcc\xcc"], b"", GREYS),
    (8, 4, [b"\x00\x07\xff\x00", b"\x33\x80\xcc\xff"], b"", GREYS),
    (16, 4, [b"\x00\x00\x12\x34\xff\xff\x00\x00", b"\x33\x33\xff\xff\xcc\xcc\x00\x01"], b"", GREYS),
    (8, 2, [bytes([200, 100, 30, 0, 0, 255]), bytes([1, 2, 3, 255, 255, 255])], chunk(b"tRNS", bytes(6)), COLOURS),
    (16, 2, [bytes(v for c in row for v in c for _ in "ab") for row in COLOURS], b"", COLOURS),
    (8, 6, [bytes([200, 100, 30, 9, 0, 0, 255, 0]), bytes([1, 2, 3, 128, 255, 255, 255, 255])], b"", COLOURS),
    (16, 6, [bytes(v for c in row for v in (*c, 7) for _ in "ab") for row in COLOURS], b"", COLOURS),
    (8, 3, [b"\x00\x01", b"\x02\x03"],
     chunk(b"PLTE", bytes(v for row in COLOURS for c in row for v in c)) + chunk(b"tRNS", b"\x00\x80"), COLOURS),
], ids=lambda value: str(value) if isinstance(value, int) else "")  # fmt: skip
def test_every_kind_of_png_decodes_and_alpha_is_dropped_not_blended(depth, kind, rows, extra, wanted):
    """IMG-8."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, depth, kind, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\x00" + row for row in rows))) + chunk(b"IEND", b"")
    found = decode_compressed("png", b"\x89PNG\r\n\x1a\n" + header + extra + body)
    values = np.array(wanted)
    assert np.array_equal(found, values if values.ndim == 3 else np.repeat(values[..., None], 3, axis=2))


def png_that_claims(width: int, height: int) -> bytes:
    """A tiny file whose header claims any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpeg_that_claims(width: int, height: int) -> bytes:
    data = bytearray(encoded("jpg", FLAT))
    place = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, place + 5, height, width)
    return bytes(data)


@pytest.mark.parametrize("make", [png_that_claims, jpeg_that_claims])
def test_a_claim_of_60000_by_60000_is_refused_before_anything_is_allocated(make):
    """IMG-9."""
    data = make(60_000, 60_000)
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match="60000 by 60000 pixels, 3600000000 in all; want at most 16777216"):
            decode_compressed("", data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", [png_that_claims, jpeg_that_claims])
def test_a_claim_of_no_pixels_is_refused(make):
    with pytest.raises(ImageError, match=r"0 by 5 pixels|does not decode|claims"):
        decode_compressed("", make(0, 5))


def test_orientation_marks_are_ignored_so_that_geometry_is_that_of_the_raw_image():
    """IMG-10."""
    plain = encoded("jpg", FLAT)
    exif = b"Exif\x00\x00" + struct.pack("<2sHIHHHII", b"II", 42, 8, 1, 0x0112, 3, 1, 6) + bytes(4)
    turned = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + plain[2:]
    upright = cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR)
    assert upright.shape == (24, 16, 3)  # the mark is in force for who heeds it
    assert np.array_equal(decode_compressed("jpeg", turned), decode_compressed("jpeg", plain))


def test_a_thumbnail_within_a_cut_file_does_not_hide_the_cut():
    plain = encoded("jpg", picture(64, 64))
    thumbnail = encoded("jpg", FLAT)
    inside = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail + plain[2:]
    assert decode_compressed("", inside).shape == (64, 64, 3)
    with pytest.raises(ImageError, match="cut off"):
        decode_compressed("", inside[:-40])


def test_compressed_depth_is_shown_as_the_raw_depth_image_is():
    millimetres = np.array([[0, 1000], [30_000, 65_000]], np.uint16)
    data = struct.pack("<iff", 0, 0.0, 0.0) + encoded("png", millimetres)
    assert decode_compressed("16UC1; compressedDepth png", data)[..., 0].tolist() == [[0, 4], [117, 253]]
    first, second = 1000.0, 5.0
    inverse = np.array([[0, 1005], [0, 505]], np.uint16)  # 0 is unknown, then 1 m and 2 m
    data = struct.pack("<iff", 0, first, second) + encoded("png", inverse)
    assert decode_compressed("32FC1; compressedDepth", data)[..., 0].tolist() == [[0, 4], [0, 8]]


def test_depth_that_is_packed_otherwise_is_refused_by_name():
    with pytest.raises(ImageError, match=r"compressedDepth rvl.*want PNG"):
        decode_compressed("16UC1; compressedDepth rvl", struct.pack("<iffii", 0, 0.0, 0.0, 4, 4) + bytes(30))


@pytest.mark.parametrize("place", range(8, 80, 3))
def test_a_damaged_chunk_of_a_png_is_refused_before_a_library_tries(place, capfd):
    data = bytearray(encoded("png", picture(40, 40)))
    data[place] ^= 0x10
    with pytest.raises(ImageError, match=r"damaged|cut off|starts with no header|claims|want at most"):
        decode_compressed("png", bytes(data))
    assert capfd.readouterr().err == ""


def test_a_png_of_one_endless_row_is_refused_with_its_numbers():
    with pytest.raises(ImageError, match="10000000 by 1 pixels; want at most 1000000 on a side"):
        decode_compressed("png", png_that_claims(10_000_000, 1))


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_gives_an_image_or_a_refusal(seed):
    generator = np.random.default_rng(seed)
    data = bytearray(encoded(("jpg", "png")[seed % 2], picture(40, 40)))
    for place in generator.integers(0, len(data), 4):
        data[place] = generator.integers(0, 256)
    try:
        found = decode_compressed("", bytes(data), max_pixels=1 << 20)
    except ImageError:
        return
    assert found.ndim == 3 and found.shape[2] == 3 and found.dtype == np.uint8
