"""The two cameras: where they stand, and how points of the table's frame land on their 128 x 128 pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .geometry import Array

IMAGE_SIZE = 128
CAMERA_NAMES = ("top", "angled")


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera as a 3x4 projection of metres to pixels; ``lift`` widths are scaled by ``scale`` px/m."""

    name: str
    matrix: Array
    scale: float

    def project(self, points: Array) -> Array:
        """Pixels [...,2] (x right, y down, pixel centres at whole numbers) of points [...,3] in metres."""
        mapped = points @ self.matrix[:, :3].T + self.matrix[:, 3]
        return np.asarray(mapped[..., :2] / mapped[..., 2:])


def _look_at(name: str, eye: Array, target: Array, focal: float, shift: tuple[float, float]) -> Camera:
    forward = target - eye
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, np.array([0.0, 0.0, 1.0]) if abs(forward[2]) < 0.99 else np.array([0.0, 1.0, 0.0]))
    right = right / np.linalg.norm(right)
    down = np.cross(forward, right)
    rotation = np.stack([right, down, forward])
    centre = (IMAGE_SIZE - 1) / 2.0
    intrinsics = np.array([[focal, 0.0, centre + shift[0]], [0.0, focal, centre + shift[1]], [0.0, 0.0, 1.0]])
    matrix = intrinsics @ np.concatenate([rotation, -(rotation @ eye)[:, None]], axis=1)
    return Camera(name, matrix, focal / float(np.linalg.norm(target - eye)))


TOP = _look_at("top", np.array([0.0, 0.172, 1.2]), np.array([0.0, 0.172, 0.0]), 405.0, (0.0, 0.0))
ANGLED = _look_at("angled", np.array([-0.36, -0.22, 0.46]), np.array([-0.005, 0.165, 0.0]), 212.0, (0.0, 0.0))
CAMERAS = (TOP, ANGLED)
