"""From the numbers of a driving policy to a path in the vehicle's frame, and from its history to tokens and speed.

The layout, scales and limits are those of Alpamayo-R1's published reference. Frames follow REP 103: x forward, y left,
z up, the origin where the vehicle is at the observation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ObservationError, PolicyError
from ..json_values import finite_number, shown, whole_number


@dataclass(frozen=True)
class UnicycleScaling:
    """How normalised (acceleration, curvature) pairs become m/s^2 and 1/m, and what is physically possible."""

    acceleration_mean: float = 0.02902694707
    acceleration_deviation: float = 0.68104267
    curvature_mean: float = 0.00026921680
    curvature_deviation: float = 0.02614828
    max_acceleration: float = 9.8
    max_curvature: float = 0.33

    def to_units(self, normalised: np.ndarray) -> np.ndarray:
        """float64 [n, 2]: m/s^2 and 1/m within the limits."""
        pairs = np.asarray(normalised, dtype=np.float64)
        mean = np.array([self.acceleration_mean, self.curvature_mean])
        deviation = np.array([self.acceleration_deviation, self.curvature_deviation])
        limit = np.array([self.max_acceleration, self.max_curvature])
        scaled: np.ndarray = np.clip(pairs * deviation + mean, -limit, limit)
        return scaled


@dataclass(frozen=True)
class DrivingPath:
    """Positions [n, 3] in m, headings [n] in rad, speeds [n] in m/s, at step, 2 step, ... after the observation."""

    positions: np.ndarray
    headings: np.ndarray
    speeds: np.ndarray
    step: float

    @property
    def finite(self) -> bool:
        """Whether all of its numbers are."""
        return all(np.isfinite(part).all() for part in (self.positions, self.headings, self.speeds))


def integrate_unicycle(
    acceleration: np.ndarray, curvature: np.ndarray, speed: float, step: float = 0.1, height: float = 0.0
) -> DrivingPath:
    """Follow accelerations [n] in m/s^2 and curvatures [n] in 1/m from the origin at ``speed`` in m/s.

    Speed and heading have closed forms within a step; positions follow by the trapezoid rule.
    """
    a, kappa = np.asarray(acceleration, np.float64), np.asarray(curvature, np.float64)
    speeds = speed + np.concatenate([[0.0], np.cumsum(a * step)])
    turn = kappa * speeds[:-1] * step + kappa * a * (step * step / 2)
    headings = np.concatenate([[0.0], np.cumsum(turn)])
    east, north = speeds * np.cos(headings), speeds * np.sin(headings)
    x = np.cumsum((east[1:] + east[:-1]) * (step / 2))
    y = np.cumsum((north[1:] + north[:-1]) * (step / 2))
    positions = np.stack([x, y, np.full_like(x, height)], axis=1)
    return DrivingPath(positions, headings[1:], speeds[1:], step)


def initial_speed(
    history: np.ndarray,
    headings: np.ndarray | None = None,
    step: float = 0.1,
    smoothing: float = 1e-6,
    ridge: float = 1e-4,
) -> float:
    """Speed in m/s at the end of positions [n, 2 or 3] with headings [n] in rad (None: those of the motion).

    The speeds that best explain every move by the trapezoid rule of ``integrate_unicycle``, in least squares;
    ``smoothing`` weighs their third difference (jerk's change), ``ridge`` the speeds themselves. Reversing is negative.

    :raises ObservationError: fewer than two positions, another number of headings, or numbers that are not finite.
    """
    points = _history(history)
    moves = np.diff(points[:, :2], axis=0)
    angles = _headings(moves) if headings is None else np.asarray(headings, dtype=np.float64)
    if angles.shape != (len(points),) or not np.isfinite(angles).all():
        raise ObservationError(
            f"the ego history has {len(points)} positions and headings of shape {angles.shape}; want one finite "
            "heading each."
        )
    count = len(moves)
    model = np.zeros((2 * count, count + 1))
    row = np.arange(count)
    for column in (row, row + 1):
        model[2 * row, column] = np.cos(angles[column])
        model[2 * row + 1, column] = np.sin(angles[column])
    normal = model.T @ model + ridge * np.eye(count + 1)
    if count >= 3:
        third = np.diff(np.eye(count + 1), n=3, axis=0)
        normal += smoothing / step**6 * third.T @ third
    return float(np.linalg.solve(normal, model.T @ (2.0 / step * moves).reshape(-1))[-1])


@dataclass(frozen=True)
class HistoryTokens:
    """Ego history as tokens: per point three bins, for the moves in x, y and z since the point before."""

    first_token: int
    bins: int = 1000
    points: int = 16
    low: tuple[float, float, float] = (-4.0, -4.0, -10.0)
    high: tuple[float, float, float] = (4.0, 4.0, 10.0)

    def __post_init__(self) -> None:
        try:
            for name, least in (("first_token", 0), ("bins", 1), ("points", 0)):
                whole_number(name, getattr(self, name), least)
            for value in (*self.low, *self.high):
                finite_number("a limit of the history", value)
        except ValueError as error:
            raise PolicyError(f"{error}; build the engine directory again.") from None
        if self.bins < 2 or self.points < 1 or any(a >= b for a, b in zip(self.low, self.high, strict=True)):
            raise PolicyError(
                f"history tokens have {self.bins} bins, {self.points} points and limits {self.low} to {self.high}; "
                "want two bins, one point and rising limits at least."
            )

    def encode(self, history: np.ndarray) -> np.ndarray:
        """int64 [3 * points] for positions [points, 3] in m in the vehicle's frame, oldest first.

        :raises ObservationError: another number of points, or numbers that are not finite.
        """
        points = _history(history)
        if points.shape != (self.points, 3):
            raise ObservationError(
                f"the ego history has shape {points.shape}; this policy takes {(self.points, 3)}: give that many "
                "positions."
            )
        low, high = np.array(self.low), np.array(self.high)
        with np.errstate(over="ignore"):  # held to the bins below
            moves = np.diff(points, axis=0, prepend=np.zeros((1, 3)))
            places = np.round((moves - low) / (high - low) * (self.bins - 1))
        tokens: np.ndarray = self.first_token + np.clip(places, 0, self.bins - 1).astype(np.int64).reshape(-1)
        return tokens


def _history(history: np.ndarray) -> np.ndarray:
    points = np.asarray(history, dtype=np.float64)
    if points.ndim != 2 or points.shape[0] < 2 or points.shape[1] not in (2, 3):
        raise ObservationError(f"the ego history has shape {points.shape}; want two rows of x, y, z at least.")
    if not np.isfinite(points).all():
        raise ObservationError(
            f"the ego history holds {shown(float(points[~np.isfinite(points)][0]))}; want finite positions."
        )
    return points


def _headings(moves: np.ndarray) -> np.ndarray:
    """Direction of travel at each of n + 1 positions; 0 (straight ahead) where the vehicle stood still."""
    still = np.linalg.norm(moves, axis=1) < 1e-6
    angles = np.where(still, 0.0, np.arctan2(moves[:, 1], moves[:, 0]))
    return np.concatenate([angles, angles[-1:]])
