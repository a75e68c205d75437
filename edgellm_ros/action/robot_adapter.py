"""Between a robot's own numbers and those that a policy was trained on, where they differ in more than statistics.

ALOHA's arms count some joints the other way round than the policies of openpi. Its drivers report a gripper as the
share of its opening in metres, and take commands as a share of the angle of the motor behind it; the policies know
angles alone. The motor moves the fingers by a horn and an arm, whose lengths join the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Span:
    """Numbers from ``low`` to ``high``, as shares from 0 to 1."""

    low: float
    high: float

    def share(self, value: np.ndarray) -> np.ndarray:
        """Of a value; beyond the ends too."""
        return (value - self.low) / (self.high - self.low)

    def value(self, share: np.ndarray) -> np.ndarray:
        """At a share."""
        return share * (self.high - self.low) + self.low


@dataclass(frozen=True)
class Gripper:
    """Lengths in m, angles in rad; ``opening`` and ``command`` are the robot's, ``angle`` the policy's."""

    opening: Span
    command: Span
    angle: Span
    horn: float
    arm: float

    def reported_to_policy(self, share: np.ndarray) -> np.ndarray:
        """A reported share of the opening, as the policy's share of the angle."""
        opening = self.opening.value(share)
        with np.errstate(divide="ignore"):
            sine = (self.horn**2 + opening**2 - self.arm**2) / (2 * self.horn * opening)
        return self.angle.share(np.arcsin(np.clip(sine, -1.0, 1.0)))

    def policy_to_reported(self, share: np.ndarray) -> np.ndarray:
        """The inverse of ``reported_to_policy``."""
        angle = self.angle.value(share)
        reach = np.sqrt(self.arm**2 - (self.horn * np.cos(angle)) ** 2)
        return self.opening.share(self.horn * np.sin(angle) + reach)

    def policy_to_command(self, action: np.ndarray) -> np.ndarray:
        """The policy's action, an angle above the lowest one, as a commanded share."""
        return self.command.share(action + self.angle.low)

    def command_to_policy(self, share: np.ndarray) -> np.ndarray:
        """The inverse of ``policy_to_command``."""
        return self.command.value(share) - self.angle.low


@dataclass(frozen=True)
class RobotAdapter:
    """``flipped``: joints that the robot counts the other way round; ``width`` 0 fits all and changes nothing."""

    width: int = 0
    flipped: tuple[int, ...] = ()
    grippers: tuple[int, ...] = ()
    gripper: Gripper | None = None

    def state_to_policy(self, state: np.ndarray) -> np.ndarray:
        """The robot's state [..., n] as the policy knows it, float64."""
        return self._turned(state, None if self.gripper is None else self.gripper.reported_to_policy)

    def state_to_robot(self, state: np.ndarray) -> np.ndarray:
        """The inverse of ``state_to_policy``."""
        return self._turned(state, None if self.gripper is None else self.gripper.policy_to_reported)

    def actions_to_robot(self, rows: np.ndarray) -> np.ndarray:
        """The policy's actions [..., n] as the robot takes them, float64."""
        return self._turned(rows, None if self.gripper is None else self.gripper.policy_to_command)

    def actions_to_policy(self, rows: np.ndarray) -> np.ndarray:
        """The inverse of ``actions_to_robot``."""
        return self._turned(rows, None if self.gripper is None else self.gripper.command_to_policy)

    def _turned(self, values: np.ndarray, convert: Callable[[np.ndarray], np.ndarray] | None) -> np.ndarray:
        turned = np.array(values, dtype=np.float64)
        turned[..., list(self.flipped)] *= -1
        if convert is not None:
            places = list(self.grippers)
            turned[..., places] = convert(turned[..., places])
        return turned


_ALOHA_GRIPPER = Gripper(
    opening=Span(0.01844, 0.05800), command=Span(-0.6213, 1.4910), angle=Span(0.5476, 1.6296), horn=0.022, arm=0.036
)
ADAPTERS: Mapping[str, RobotAdapter] = {
    "": RobotAdapter(),
    "aloha": RobotAdapter(14, (1, 2, 8, 9), (6, 13), _ALOHA_GRIPPER),
}
