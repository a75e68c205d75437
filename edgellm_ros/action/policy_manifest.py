"""What a policy takes and gives, as the builder wrote it beside the action engines (``action/policy.json``).

Everything that differs between families stands here as data: the runner has no class for any of them. Where a
checkpoint does not say what its numbers mean, the meaning is ``UNKNOWN``, and nothing is published as motion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ..engine_format import ACTION_DIRECTORY as ACTION_DIRECTORY
from ..engine_format import POLICY_FILE as POLICY_FILE
from ..errors import EngineDirectoryError, PolicyError
from ..json_values import finite_number, plain_text, problem_of, read_json, shown, whole_number
from .camera_slots import CameraSlot as CameraSlot
from .camera_slots import filled_slots
from .dimensions import Dimensions
from .driving import Driving
from .fingerprints import Fingerprints
from .normalization import Normalization
from .prompt_format import check_prompt_format
from .robot_adapter import ADAPTERS, RobotAdapter
from .solver import MAX_DENOISE_STEPS, FlowDirection
from .time_embedding import Waves

CONTRACT_VERSION = 2  # 1: waypoints stood behind what they read of a cache; no fingerprints


class ActionMeaning(str, Enum):
    """What the numbers of an action are; decides as what they may be published."""

    JOINT_POSITION = "joint_position"
    JOINT_DELTA = "joint_delta"
    JOINT_VELOCITY = "joint_velocity"
    DELTA_POSE = "delta_pose"
    TWIST = "twist"
    ACCELERATION_CURVATURE = "acceleration_curvature"
    UNKNOWN = "unknown"


class Handoff(str, Enum):
    """What the action engine reads of the language model's pass."""

    PREFIX_KV = "prefix_kv"  # keys and values of its layers
    CONTEXT = "context"  # hidden states


class FlowResult(str, Enum):
    """What the action engine gives."""

    VELOCITY = "velocity"
    NEXT_STATE = "next_state"


class SuffixMask(str, Enum):
    """Which of the rows after the prefix an action sees, beside all of the prefix."""

    CAUSAL = "causal"  # those up to itself (SmolVLA)
    FULL = "full"  # all of them (pi0.5)
    STATE_BLIND = "state_blind"  # all of them, while the state in front sees itself alone (pi0)


class StateInput(str, Enum):
    """How the robot's state enters."""

    PREFIX_TOKEN = "prefix_token"  # one embedding at the end of the prefix (SmolVLA)
    SUFFIX_TOKEN = "suffix_token"  # one embedding before the actions (pi0, GR00T)
    PROMPT_BINS = "prompt_bins"  # words of the prompt (pi0.5)
    NONE = "none"


class ImageFit(str, Enum):
    """How a camera's picture becomes the network's."""

    PAD_LEFT_TOP = "pad_left_top"  # aspect kept, zeros on the left and top (SmolVLA)
    PAD_CENTRE = "pad_centre"  # aspect kept, zeros around (pi0, pi0.5)
    PAD_CENTRE_SMOOTH = "pad_centre_smooth"  # the same, antialiased and rounded to 8 bits (openpi)
    PROCESSOR = "processor"  # as the language model's own image processor does


@dataclass(frozen=True)
class PolicyManifest:
    """See the module. ``horizon`` rows of ``step_time`` seconds; ``denoise_steps`` is the checkpoint's own number."""

    family: str
    policy: str
    state: Dimensions
    action: Dimensions
    meaning: ActionMeaning
    horizon: int
    execute_steps: int
    step_time: float
    cameras: tuple[CameraSlot, ...]
    image_size: tuple[int, int]
    image_fit: ImageFit
    image_tokens: int  # of one camera
    empty_cameras: int  # cameras of which the policy was trained to do without, whichever they are
    handoff: Handoff
    direction: FlowDirection
    result: FlowResult
    state_input: StateInput
    suffix_mask: SuffixMask
    denoise_steps: int
    time_waves: tuple[Waves, ...] = ()  # the sines and cosines of t that the engine takes
    text_scale: float = 1.0  # of the token table's rows
    rope_theta: float = 10_000.0  # of the rotations that the prefix and the actions are given
    rope_section: tuple[int, ...] = ()  # frequencies by axis where positions have three, taken in turn
    head_dim: int = 0
    time_buckets: int = 0
    prompt_tokens: int = 48
    prompt_format: str = "{task}\n"
    delta_dimensions: tuple[int, ...] = ()  # actions that are given relative to the state at the same index
    max_denoise_steps: int = MAX_DENOISE_STEPS
    network_rows: int = 0  # that the network denoises; those behind the horizon are not used; 0: the horizon
    image_crop: float = 1.0  # share of either side that is kept around the middle of a picture
    plain_words: bool = False  # the task is read in small letters without signs
    spaced_words: bool = False  # underscores and line ends in the task are read as blanks
    adapter: str = ""  # between the robot's numbers and those that the policy was trained on, by its name
    embodiment: str = ""  # which of a checkpoint's robots this is
    driving: Driving | None = None  # of policies that reason in words and plan a path
    fingerprints: Fingerprints = field(default_factory=Fingerprints)

    def __post_init__(self) -> None:
        try:
            whole_number("horizon", self.horizon, 1, 4096)
            whole_number("execute_steps", self.execute_steps, 1, self.horizon)
            whole_number("denoise_steps", self.denoise_steps, 1, self.max_denoise_steps)
            whole_number("max_denoise_steps", self.max_denoise_steps, 1, MAX_DENOISE_STEPS)
            whole_number("prompt_tokens", self.prompt_tokens, 0)
            whole_number("image_tokens", self.image_tokens, 0)
            whole_number("empty_cameras", self.empty_cameras, 0, 16)
            whole_number("head_dim", self.head_dim, 0)
            for wave in self.time_waves:
                whole_number("the count of time_waves", wave.count, 1, 1 << 16)
                for value in (wave.first, wave.last, wave.scale):
                    if not finite_number("a number of time_waves", value) > 0:
                        raise ValueError(f"a number of time_waves is {value}; want one above 0")
            for size in self.rope_section:
                whole_number("rope_section", size, 0)
            whole_number("network_rows", self.network_rows or self.horizon, self.horizon, 4096)
            if not 0 < finite_number("image_crop", self.image_crop) <= 1:
                raise ValueError(f"image_crop is {self.image_crop}; want a share above 0, to 1")
            if not finite_number("rope_theta", self.rope_theta) > 0:
                raise ValueError(f"rope_theta is {self.rope_theta}; want a number above 0")
            finite_number("text_scale", self.text_scale)
            for size in self.image_size:
                whole_number("image_size", size, 1, 8192)
            if len(self.image_size) != 2:
                raise ValueError(f"image_size is {self.image_size}; want height and width")
            check_prompt_format(self.prompt_format, self._prompt_places)
            for index in self.delta_dimensions:
                whole_number("delta_dimensions", index, 0, min(self.action.width, self.state.width) - 1)
            if len(set(self.delta_dimensions)) != len(self.delta_dimensions):
                raise ValueError(f"delta_dimensions is {self.delta_dimensions}; want none twice")
            if not 0 < finite_number("step_time", self.step_time) <= 10:
                raise ValueError(f"step_time is {self.step_time}; want seconds above 0, to 10")
        except ValueError as error:
            raise PolicyError(f"{POLICY_FILE}: {error}.") from None
        names = [slot.name for slot in self.cameras]
        if len(set(names)) != len(names):
            raise PolicyError(f"{POLICY_FILE}: two cameras share a name in {names}; want names of their own.")
        adapter = ADAPTERS.get(self.adapter)
        if adapter is None or any(adapter.width not in (0, part.width) for part in (self.state, self.action)):
            raise PolicyError(
                f"{POLICY_FILE} has the adapter {shown(self.adapter)} for {self.state.width} and {self.action.width} "
                f"dimensions; want one of {', '.join(filter(None, ADAPTERS))} with its own number of them, or none."
            )

    @property
    def _prompt_places(self) -> tuple[str, ...]:
        if self.driving is not None:
            return "images", "history", "task"
        if self.handoff is Handoff.CONTEXT:
            return "images", "task"
        return ("task", "state") if self.state_input is StateInput.PROMPT_BINS else ("task",)

    @property
    def rows(self) -> int:
        """That the network denoises."""
        return self.network_rows or self.horizon

    def camera(self, name: str) -> CameraSlot | None:
        """The slot of that name, full or last component."""
        return next((slot for slot in self.cameras if name in (slot.key, slot.name)), None)

    def present_cameras(self, given: Sequence[str]) -> tuple[CameraSlot, ...]:
        """The slots that ``given`` fills, in order. :raises ObservationError: a camera is missing or unknown."""
        return filled_slots(self.cameras, given, self.empty_cameras)

    @property
    def seen_cameras(self) -> tuple[CameraSlot, ...]:
        """Those that the policy looks at."""
        return tuple(slot for slot in self.cameras if not slot.ignored)

    @property
    def robot(self) -> RobotAdapter:
        """What lies between the robot's numbers and the policy's."""
        return ADAPTERS[self.adapter]

    def to_json(self) -> dict[str, Any]:
        """The file's content; ``from_json`` reads it back to an equal object."""
        content = asdict(self)
        for key in ("state", "action"):
            part: Dimensions = getattr(self, key)
            content[key] |= {"normalization": part.normalization.to_json()}
        return {"contract_version": CONTRACT_VERSION, **json.loads(json.dumps(content))}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PolicyManifest:
        """:raises PolicyError: another contract version, a key that is missing or unknown, or a value out of range."""
        found = dict(content)
        version = found.pop("contract_version", None)
        if version != CONTRACT_VERSION:
            raise PolicyError(
                f"{POLICY_FILE} has contract_version {shown(version)}; this version reads {CONTRACT_VERSION}: build it "
                "again."
            )
        try:
            for key in cls.__dataclass_fields__:
                found[key]  # every key is in the file, those with a default too
            for key in ("state", "action"):
                part = dict(found[key])
                found[key] = Dimensions(
                    tuple(map(plain_text, part["names"])),
                    tuple(map(plain_text, part["units"])),
                    whole_number(f"{key}.padded", part["padded"], 1, 1 << 16),
                    Normalization.from_json(part["normalization"]),
                )
            found["cameras"] = tuple(
                CameraSlot(plain_text(row["key"]), bool(row["required"]), bool(row["ignored"]))
                for row in found["cameras"]
            )
            for key, kind in _ENUMS.items():
                found[key] = kind(found[key])
            for key in ("image_size", "delta_dimensions", "rope_section"):
                found[key] = tuple(found[key])
            if found["driving"] is not None:
                found["driving"] = Driving.from_json(found["driving"])
            found["fingerprints"] = Fingerprints(**found["fingerprints"])
            found["time_waves"] = tuple(Waves(**wave) for wave in found["time_waves"])
            for key in ("family", "policy", "prompt_format", "adapter", "embodiment"):
                found[key] = str(found[key])
            return cls(**found)
        except PolicyError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PolicyError(f"{POLICY_FILE} {problem_of(error)}; build it again.") from None


_ENUMS: Mapping[str, type[Enum]] = {
    "meaning": ActionMeaning,
    "image_fit": ImageFit,
    "handoff": Handoff,
    "direction": FlowDirection,
    "result": FlowResult,
    "state_input": StateInput,
    "suffix_mask": SuffixMask,
}


def read_policy_manifest(directory: Path) -> PolicyManifest:
    """The manifest of the action engines in ``directory``.

    :raises PolicyError: the file is missing, no JSON object, or refused; the sentence names it.
    """
    try:
        return PolicyManifest.from_json(read_json(directory / POLICY_FILE))
    except EngineDirectoryError as error:
        raise PolicyError(str(error)) from None
