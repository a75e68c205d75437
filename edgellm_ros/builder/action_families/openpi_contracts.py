"""The robots that openpi's published policies are for, and what each of them gives and takes.

An openpi checkpoint holds weights and statistics. Everything else stands in the training code, under the name of a
configuration: which number is which joint, which camera fills which place, how many actions a chunk has. Weights under
another robot's contract give actions that look right and are wrong, so a contract is named, and what can be checked
against it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...action.policy_manifest import ActionMeaning, CameraSlot
from ...errors import CheckpointError

LIBERO, DROID, ALOHA = "libero", "droid", "aloha"


@dataclass(frozen=True)
class Contract:
    """``horizons`` and ``deltas`` are by family, pi0 or pi05; names and units are in the order of the numbers.

    ``asset`` is the folder of the robot's statistics where a checkpoint has those of several. Actions in ``deltas``
    come out relative to the state at the same place. ``state_in_prompt`` is of pi0.5; pi0 has a place for the state.
    """

    asset: str
    state: Mapping[str, str]  # name -> unit
    action: Mapping[str, str]
    meaning: ActionMeaning
    step_time: float
    execute_steps: int
    cameras: tuple[CameraSlot, ...]
    horizons: Mapping[str, int]
    deltas: Mapping[str, tuple[int, ...]]
    state_in_prompt: bool
    adapter: str = ""

    def dimensions(self, part: str) -> Mapping[str, str]:
        """Units by name, of ``state`` or ``action``."""
        return self.state if part == "state" else self.action


def _cameras(*names: str, optional: tuple[str, ...] = (), ignored: tuple[str, ...] = ()) -> tuple[CameraSlot, ...]:
    return tuple(
        CameraSlot(f"observation.images.{name}", name in names, name in ignored)
        for name in (*names, *optional, *ignored)
    )


_ARM = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
_TWO_ARMS = {
    f"{side}_{joint}": "1" if joint == "gripper" else "rad"
    for side in ("left", "right")
    for joint in (*_ARM, "gripper")
}
_FRANKA = {f"joint_{number}": "rad" for number in range(1, 8)}
_HAND = (*range(6),)

CONTRACTS: Mapping[str, Contract] = {
    # the pose of the hand, its rotation as axis times angle, and both fingers; shares of the controller's largest step
    LIBERO: Contract(
        asset="physical-intelligence/libero",
        state={
            "x": "m", "y": "m", "z": "m", "axis_angle_x": "rad", "axis_angle_y": "rad", "axis_angle_z": "rad",
            "finger_left": "m", "finger_right": "m",
        },
        action=dict.fromkeys(("x", "y", "z", "roll", "pitch", "yaw", "gripper"), "1"),
        meaning=ActionMeaning.DELTA_POSE,
        step_time=1 / 20,
        execute_steps=5,
        cameras=_cameras("image", "wrist_image"),
        horizons={"pi0": 50, "pi05": 10},
        deltas={"pi0": _HAND, "pi05": ()},
        state_in_prompt=False,
    ),
    # velocities are shares of the largest that DROID's controller allows; the gripper is open at 0 and closed at 1
    DROID: Contract(
        asset="droid",
        state={**_FRANKA, "gripper": "1"},
        action=dict.fromkeys((*_FRANKA, "gripper"), "1"),
        meaning=ActionMeaning.JOINT_VELOCITY,
        step_time=1 / 15,
        execute_steps=8,
        cameras=_cameras("exterior_image_1_left", "wrist_image_left"),
        horizons={"pi0": 10, "pi05": 15},
        deltas={"pi0": (), "pi05": ()},
        state_in_prompt=True,
    ),
    ALOHA: Contract(
        asset="trossen",
        state=_TWO_ARMS,
        action=_TWO_ARMS,
        meaning=ActionMeaning.JOINT_POSITION,
        step_time=1 / 50,
        execute_steps=25,
        cameras=_cameras("cam_high", optional=("cam_left_wrist", "cam_right_wrist"), ignored=("cam_low",)),
        horizons={"pi0": 50, "pi05": 50},
        deltas=dict.fromkeys(("pi0", "pi05"), (*_HAND, *range(7, 13))),
        state_in_prompt=True,
        adapter="aloha",
    ),
}  # fmt: skip


def find_contract(named: str, family: str, horizon: int, asset: str, source: str) -> Contract:
    """The contract that is ``named``; without a name, LIBERO's where a pi0.5 with its horizon has its statistics.

    :param asset: the folder of the checkpoint's only statistics, as ``a/b``; empty where it has several or none.
    :raises CheckpointError: none is named and none is recognised, or the checkpoint's horizon is another.
    """
    libero = CONTRACTS[LIBERO]
    recognised = family == "pi05" and asset == libero.asset and horizon == libero.horizons[family]
    name = named or (LIBERO if recognised else "")
    if not name:
        raise CheckpointError(
            f"{source} comes from openpi, whose checkpoints do not say which robot they are for; name it with "
            f"--policy-contract {', '.join(CONTRACTS)}."
        )
    wanted = CONTRACTS[name].horizons[family]
    if horizon != wanted:
        raise CheckpointError(
            f"{source} has chunks of {horizon} actions (action_horizon); the contract {name} of {family} has {wanted}: "
            "the checkpoint is for another robot, or was trained in another way."
        )
    return CONTRACTS[name]
