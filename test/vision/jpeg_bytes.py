"""JPEG files of flat colour made by hand, with channels and headers that no encoder at hand writes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_DC_CODES = bytes([0x00, 0, 0, 0, 12, *[0] * 12, *range(12)])  # twelve sizes of a step, four bits each
_AC_CODES = bytes([0x10, 1, *[0] * 15, 0x00])  # the end of a block alone, one bit


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def frame_header(channels: int, width: int, height: int, kind: int = 0xC0) -> bytes:
    table = b"".join(bytes([index + 1, 0x11, 0]) for index in range(channels))
    return segment(kind, struct.pack(">BHHB", 8, height, width, channels) + table)


def _packed(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    data = bytes(int(bits[place : place + 8], 2) for place in range(0, len(bits), 8))
    return data.replace(b"\xff", b"\xff\x00")


def flat_jpeg(values: Sequence[int], *, claimed_height: int = 8, before: bytes = b"") -> bytes:
    """8 by 8 pixels, one value for each channel as it is stored; ``before`` stands in front of the headers."""
    channels = len(values)
    bits = ""
    for value in values:
        step = (value - 128) * 8
        size = abs(step).bit_length()
        bits += f"{size:04b}"
        if size:
            bits += f"{step if step > 0 else step + (1 << size) - 1:0{size}b}"
        bits += "0"
    scan = bytes([channels]) + b"".join(bytes([index + 1, 0]) for index in range(channels)) + bytes([0, 63, 0])
    tables = segment(0xDB, bytes([0]) + bytes([1] * 64)) + frame_header(channels, 8, claimed_height)
    tables += segment(0xC4, _DC_CODES) + segment(0xC4, _AC_CODES)
    return b"\xff\xd8" + before + tables + segment(0xDA, scan) + _packed(bits) + b"\xff\xd9"


def progressive_jpeg(side: int, scans: int) -> bytes:
    """A square of grey in many passes, each a few bytes that say nothing for all of it."""
    blocks = (side // 8) ** 2
    head = b"\xff\xd8" + segment(0xDB, bytes([0]) + bytes([1] * 64)) + frame_header(1, side, side, 0xC2)
    first = (
        segment(0xC4, bytes([0x00, 1, *[0] * 15, 0])) + segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes(blocks // 8)
    )
    runs = segment(0xC4, bytes([0x10, 1, *[0] * 15, 0xE0]))  # a run of 16,384 empty blocks and more
    empty = segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + _packed(("0" + "1" * 14) * -(-blocks // 32767))
    return head + first + runs + empty * scans + b"\xff\xd9"
