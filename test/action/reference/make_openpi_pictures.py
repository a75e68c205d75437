"""Writes ``openpi_pictures.npz``: pictures as openpi's client fits them into a square, by Pillow.

Run with Pillow below 13 and numpy: ``python make_openpi_pictures.py``. openpi asks Pillow for a bilinear picture of the
largest size that fits, with the aspect kept and sizes cut to whole pixels, and puts it into the middle of a black one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32
SIZES = ((32, 32), (60, 80), (71, 40), (20, 28), (33, 32))  # height, width


def picture(height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: noise over a slope, which shows both blur and place."""
    noise = np.random.default_rng(height * width).integers(0, 200, (height, width, 3))
    return (noise + np.linspace(0, 55, width)[None, :, None]).astype(np.uint8)


def fitted(image: np.ndarray, side: int) -> np.ndarray:
    """uint8 [side, side, 3]."""
    height, width = image.shape[:2]
    if (height, width) == (side, side):
        return image
    ratio = max(width / side, height / side)
    size = int(width / ratio), int(height / ratio)
    place = Image.new("RGB", (side, side), 0)
    shrunk = Image.fromarray(image).resize(size, resample=Image.Resampling.BILINEAR)
    place.paste(shrunk, (max(0, int((side - size[0]) / 2)), max(0, int((side - size[1]) / 2))))
    return np.asarray(place)


def main() -> None:
    """Write the file beside this one."""
    stored = {}
    for height, width in SIZES:
        image = picture(height, width)
        stored |= {f"given_{height}_{width}": image, f"fitted_{height}_{width}": fitted(image, SIDE)}
    np.savez_compressed(Path(__file__).parent / "openpi_pictures.npz", **stored)


if __name__ == "__main__":
    main()
