"""Pictures that reference scripts and tests make alike: gradients, hard edges, saturated spots and noise."""

from __future__ import annotations

import numpy as np


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 RGB [height,width,3]; the same on every machine (integers only)."""
    generator = np.random.Generator(np.random.PCG64(seed * 7919 + height * 31 + width))
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.stack(
        [
            (rows * 255) // max(height - 1, 1),
            (columns * 255) // max(width - 1, 1),
            ((rows * 3 + columns * 5 + seed * 40) % 256),
        ],
        axis=2,
    )
    checks = ((rows // 3 + columns // 4) % 2 == 0)[..., None]
    part = (columns > width // 2)[..., None]
    image = np.where(part & checks, 255, np.where(part, image // 8, image))
    noise = generator.integers(-40, 41, image.shape)
    noisy = (rows > 2 * height // 3)[..., None]
    return np.clip(np.where(noisy, image + noise, image), 0, 255).astype(np.uint8)
