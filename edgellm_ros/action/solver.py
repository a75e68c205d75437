"""Flow matching as data: which way time runs, where the steps lie, and real-time chunking's guidance.

A model that runs ``DOWN`` has noise at t = 1 and data at t = 0 (pi0, pi0.5, SmolVLA); one that runs ``UP`` has noise
at 0 and data at 1 (Alpamayo-R1, GR00T). Either way a step is ``x += step * velocity(x, t)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..errors import PolicyError
from ..json_values import whole_number

MAX_DENOISE_STEPS = 100


class FlowDirection(str, Enum):
    """Where time starts."""

    UP = "up"
    DOWN = "down"


class ChunkWeights(str, Enum):
    """How guidance fades from the actions that are committed to those that are free."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    ONES = "ones"
    ZEROS = "zeros"


@dataclass(frozen=True)
class FlowSchedule:
    """Uniform steps from noise to data; ``buckets`` above 0 gives the network whole numbers instead of t."""

    direction: FlowDirection
    steps: int
    buckets: int = 0

    def __post_init__(self) -> None:
        try:
            whole_number("denoise steps", self.steps, 1, MAX_DENOISE_STEPS)
            whole_number("time buckets", self.buckets, 0)
        except ValueError as error:
            raise PolicyError(f"{error}; set it within that range.") from None

    @property
    def step(self) -> float:
        """What one step adds to t."""
        return (1.0 if self.direction is FlowDirection.UP else -1.0) / self.steps

    def times(self) -> np.ndarray:
        """float64 [steps]: t at which each step's velocity is taken."""
        done = np.arange(self.steps) / self.steps
        return done if self.direction is FlowDirection.UP else 1.0 - done

    def network_times(self) -> np.ndarray:
        """float32 [steps]: what the network is given, buckets where it takes them."""
        times = self.times()
        return (np.floor(times * self.buckets) if self.buckets else times).astype(np.float32)


def euler(
    noise: np.ndarray, velocity: Callable[[np.ndarray, float], np.ndarray], schedule: FlowSchedule
) -> Iterator[np.ndarray]:
    """The state after each step, float32; stop early by leaving the iteration (a cancel takes one step at most)."""
    state = np.array(noise, dtype=np.float32)
    step = np.float32(schedule.step)
    for time in schedule.times():
        state = state + step * velocity(state, float(time)).astype(np.float32)
        yield state


class Guidance(Enum):
    """How strongly a velocity is corrected by the error of the end that it leads to, ``left`` of the way being to go.

    ``STRAIGHT`` by 1 / left: a row of weight 1 goes straight from its noise to its target, as rows of the training data
    do, so the network sees nothing new. ``LEROBOT`` by min((left^2 + done^2) / (done * left), max_guidance), which is
    lerobot 0.6.1's: the correction of the paper with the network's Jacobian taken as the identity. Its first steps
    overshoot, which costs success in closed loop.
    """

    STRAIGHT = "straight"
    LEROBOT = "lerobot"


@dataclass(frozen=True)
class RealTimeChunking:
    """Guides a new chunk towards what the robot is already committed to (after Black et al., arXiv 2506.07339).

    In closed form, without a gradient of the network. ``delay`` actions at the start are held to the earlier chunk, and
    the pull fades out by action ``horizon``.
    """

    delay: int
    horizon: int
    max_guidance: float = 10.0
    weights: ChunkWeights = ChunkWeights.LINEAR
    guidance: Guidance = Guidance.STRAIGHT

    def __post_init__(self) -> None:
        if not 0 <= self.delay <= self.horizon:
            raise PolicyError(
                f"a delay of {self.delay} actions lies outside the execution horizon of {self.horizon}; run the policy "
                "faster or widen the horizon."
            )
        if not self.max_guidance > 0:
            raise PolicyError(f"max_guidance is {self.max_guidance}; want a number above 0.")

    @classmethod
    def expecting(cls, seconds: float, step_time: float, fade: int, committed: int) -> RealTimeChunking:
        """For a chunk that is expected this long after its observation; ``fade`` actions later the earlier chunk, which
        has ``committed`` actions left, is let go.
        """
        delay = min(max(math.ceil(seconds / step_time - 1e-9), 0), committed)
        return cls(delay, min(delay + fade, committed))

    def row_weights(self, rows: int) -> np.ndarray:
        """float32 [rows]: 1 for the delay, a ramp to the horizon, 0 after it."""
        index = np.arange(rows, dtype=np.float64)
        end = min(self.horizon, rows)
        held = index < min(self.delay, end)
        if self.weights is ChunkWeights.ZEROS:
            return held.astype(np.float32)
        if self.weights is ChunkWeights.ONES:
            return (index < end).astype(np.float32)
        ramp = np.clip((end - index) / max(end - self.delay + 1, 1), 0.0, 1.0)
        if self.weights is ChunkWeights.EXPONENTIAL:
            ramp = ramp * np.expm1(ramp) / np.expm1(1.0)
        return np.where(held, 1.0, np.where(index < end, ramp, 0.0)).astype(np.float32)

    def guide(
        self,
        velocity: np.ndarray,
        state: np.ndarray,
        time: float,
        committed: np.ndarray,
        direction: FlowDirection = FlowDirection.DOWN,
    ) -> np.ndarray:
        """The velocity with the pull towards ``committed``, normalised rows [n, A]; those beyond n are left alone.

        :param velocity: float32 [H, A], as the network gave it for ``state`` [H, A] at ``time``.
        """
        sign = np.float32(1.0 if direction is FlowDirection.UP else -1.0)
        left = 1.0 - time if direction is FlowDirection.UP else time  # of the way from noise to data
        done = 1.0 - left
        target = np.zeros_like(state)
        rows = min(len(committed), len(state))
        target[:rows, : committed.shape[1]] = committed[:rows]
        weights = self.row_weights(len(state)) * (np.arange(len(state)) < rows)
        error = (target - (state + sign * np.float32(left) * velocity)) * weights[:, None]
        guided: np.ndarray = velocity + sign * np.float32(self._strength(left, done)) * error
        return guided

    def _strength(self, left: float, done: float) -> float:
        if self.guidance is Guidance.STRAIGHT:
            return 1.0 / left if left > 0.0 else 0.0
        if done > 0.0 and left > 0.0:
            return min((left * left + done * done) / (done * left), self.max_guidance)
        return self.max_guidance
