"""A policy that reasons in words before it drives: what it is asked, how long it may think, where its plan begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import ChunkError, ObservationError, PolicyError
from ..json_values import finite_number, whole_number
from .kinematics import DrivingPath, HistoryTokens, initial_speed, integrate_unicycle

MOST_SPEED = 100.0  # m/s that a history may say


@dataclass(frozen=True)
class Driving:
    """``frames`` pictures of each camera, oldest first; ``task`` where none is given.

    A plan begins behind the token ``marker``, which ends the reasoning; ids from ``silent`` on, so many, are never
    said. ``temperature`` and ``top_p`` are those of the words.
    """

    frames: int
    task: str
    marker: int
    silent: tuple[int, int]
    history: HistoryTokens
    reasoning_tokens: int
    temperature: float
    top_p: float
    max_acceleration: float
    max_curvature: float

    def __post_init__(self) -> None:
        try:
            whole_number("frames", self.frames, 1, 64)
            whole_number("marker", self.marker, 0)
            for value in self.silent:
                whole_number("silent", value, 0)
            whole_number("reasoning_tokens", self.reasoning_tokens, 1)
            for name in ("temperature", "top_p", "max_acceleration", "max_curvature"):
                if finite_number(name, getattr(self, name)) < 0:
                    raise ValueError(f"{name} is {getattr(self, name)}; want 0 or more")
        except ValueError as error:
            raise PolicyError(f"policy.json: {error}.") from None

    def limited(self, rows: np.ndarray) -> np.ndarray:
        """Rows [n,2] of m/s^2 and 1/m within what is physically possible."""
        limit = np.array([self.max_acceleration, self.max_curvature])
        held: np.ndarray = np.clip(rows, -limit, limit)
        return held

    def path(self, rows: np.ndarray, history: np.ndarray, step: float) -> DrivingPath:
        """Where accelerations and curvatures [n,2] lead from the end of the positions [points,3] that were driven.

        :raises ChunkError: the positions cannot be those of a vehicle.
        """
        with np.errstate(all="ignore"):
            speed, height = initial_speed(history, step=step), float(history[-1, 2])
            path = integrate_unicycle(rows[:, 0], rows[:, 1], speed, step, height)
        if not abs(speed) <= MOST_SPEED or not path.finite:
            raise ChunkError(
                f"the positions that were driven say a speed of {speed:g} m/s; want {MOST_SPEED:g} at most: check the "
                "odometry."
            )
        return path

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Driving:
        """:raises KeyError, TypeError: a key is missing or unknown, or of the wrong type."""
        found = dict(content)
        history = dict(found["history"])
        found["history"] = HistoryTokens(**{**history, "low": tuple(history["low"]), "high": tuple(history["high"])})
        first, count = found["silent"]
        return cls(**{**found, "silent": (first, count), "task": str(found["task"])})

    def to_json(self) -> dict[str, Any]:
        """The object in the manifest."""
        return asdict(self)


def check_frames(image: Any, name: str, frames: int) -> list[np.ndarray]:
    """The pictures of a camera, uint8 RGB [frames,H,W,3], one by one.

    :raises ObservationError: another shape or type.
    """
    fits = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 4 and image.shape[3] == 3
    if not fits or image.shape[0] != frames or 0 in image.shape:
        shape = getattr(image, "shape", type(image).__name__)
        raise ObservationError(
            f"the pictures of camera {name!r} are {getattr(image, 'dtype', '')} of shape {shape}; want uint8 RGB "
            f"[{frames}, height, width, 3], oldest first."
        )
    return list(image)
