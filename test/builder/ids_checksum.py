"""A short stand-in for a list of token ids."""

from __future__ import annotations

import zlib

import numpy as np


def checksum(ids: list[int]) -> int:
    return zlib.crc32(np.array(ids, dtype="<i4").tobytes()) % 1_000_003
