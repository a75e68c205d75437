"""A loaded policy: what configuring makes of an engine directory with actions, and cleaning up frees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..action.noise import NoiseMode, NoiseSeeds
from ..action.policy_manifest import ACTION_DIRECTORY, POLICY_FILE, ActionMeaning, PolicyManifest
from ..errors import PolicyError
from ..vision.pruner import PruningOutcome

if TYPE_CHECKING:
    from ..action.chunk import ActionChunk
    from ..action.observation import Observation
    from ..action.policy_runtime import PolicyRuntime
    from ..action.solver import RealTimeChunking
    from .parameters import ActionSettings, PrunerSettings, SafetySettings, Settings


JOINT_UNITS = ("rad", "m", "1")


def has_policy(directory: Path) -> bool:
    """Whether an engine directory holds a policy."""
    return (directory / ACTION_DIRECTORY / POLICY_FILE).is_file()


@dataclass
class PolicyHost:
    """One policy and its seeds; ``compute`` belongs to the worker thread."""

    runtime: PolicyRuntime
    seeds: NoiseSeeds
    joint_names: tuple[str, ...]
    seed: int | None = None  # of the last chunk, whatever became of it

    @classmethod
    def load(cls, directory: Path, settings: Settings) -> PolicyHost:
        """Load and, where that is asked for, warm up.

        :raises EdgeLLMError: the directory or a setting does not fit, in one sentence.
        """
        from ..action.policy_runtime import PolicyRuntime

        runtime = PolicyRuntime(directory, backend=settings.engine.backend, threads=settings.engine.threads)
        try:
            manifest = runtime.manifest
            names = settings.action.joint_names or manifest.action.names
            check_settings(manifest, settings.action, settings.safety, names)
            if settings.engine.warmup:
                runtime.warm_up()
        except BaseException:
            runtime.close()
            raise
        return cls(runtime, NoiseSeeds(), names)

    @property
    def manifest(self) -> PolicyManifest:
        """What the policy takes and gives."""
        return self.runtime.manifest

    @property
    def state_names(self) -> tuple[str, ...]:
        """The joints whose positions are the policy's state, as messages name them."""
        return state_names(self.manifest, self.joint_names)

    def positions(self, state: np.ndarray) -> np.ndarray | None:
        """Where the dimensions of an action are in a state [n]; None where names do not tell."""
        names, action = self.manifest.state.names, self.manifest.action.names
        if set(action) <= set(names):
            return state[[names.index(name) for name in action]]
        return state if len(names) == len(action) and not set(action) & set(names) else None

    def compute(
        self,
        observation: Observation,
        task: str,
        settings: ActionSettings,
        *,
        chunking: RealTimeChunking | None = None,
        committed: np.ndarray | None = None,
        pruner: PrunerSettings | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        on_text: Callable[[str], None] = lambda text: None,
    ) -> ActionChunk | None:
        """One chunk under these settings; see ``PolicyRuntime.compute``.

        A pruner that is on but not for actions is left out, and the chunk says so.
        """
        self.seeds.base, self.seeds.mode = settings.noise_seed, NoiseMode(settings.noise_mode)
        self.seed = self.seeds.next(observation.stamp)
        for_actions = pruner is not None and pruner.allow_with_actions
        chunk = self.runtime.compute(
            observation,
            task,
            noise_seed=self.seed,
            denoise_steps=settings.denoise_steps,
            chunking=chunking,
            committed=committed,
            visual_pruner=pruner.config if pruner is not None and for_actions else None,
            cancelled=cancelled,
            on_text=on_text,
        )
        if chunk is None or chunk.pruning is None or pruner is None or not pruner.enabled or for_actions:
            return chunk
        return replace(chunk, pruning=replace(chunk.pruning, outcome=PruningOutcome.ACTIONS))

    def close(self) -> None:
        """Free the engines."""
        self.runtime.close()


def state_names(manifest: PolicyManifest, joint_names: tuple[str, ...]) -> tuple[str, ...]:
    """The joints whose positions are a policy's state, as messages name them.

    ``joint_names`` rename those that are actions too; where no name is both, they are in the same order.
    """
    state, action = manifest.state.names, manifest.action.names
    if set(state) & set(action):
        renamed = dict(zip(action, joint_names, strict=True))
        return tuple(renamed.get(name, name) for name in state)
    return joint_names if joint_names != action and len(action) == len(state) else state


def check_settings(
    manifest: PolicyManifest, action: ActionSettings, safety: SafetySettings, joint_names: tuple[str, ...]
) -> None:
    """:raises PolicyError: names or limits are not one for each dimension of an action, units are not those of joint
    messages, or denoise or executed steps are too many.
    """
    width = manifest.action.width
    if manifest.meaning is ActionMeaning.JOINT_POSITION:
        for part in (manifest.state, manifest.action):
            for name, unit in zip(part.names, part.units, strict=True):
                if unit not in JOINT_UNITS:
                    raise PolicyError(
                        f"the policy has {name!r} in {unit!r}; joint_states and action_trajectory carry "
                        f"{', '.join(JOINT_UNITS)} (a share): build it with statistics and units of these."
                    )
    if len(joint_names) != width or len(set(joint_names)) != width:
        raise PolicyError(
            f"action.joint_names has {len(joint_names)} names ({len(set(joint_names))} of their own); the policy's "
            "actions "
            f"have {width} dimensions: {', '.join(manifest.action.names)}."
        )
    given = {f"action.{name}": getattr(action, name) for name in ("denoise_steps", "execute_steps")}
    given |= {f"safety.{name}": getattr(safety, name) for name in ("lower", "upper", "max_step")}
    for name, value in given.items():
        if reason := unfit(manifest, name, value):
            raise PolicyError(reason)


def unfit(manifest: PolicyManifest, name: str, value: Any) -> str | None:
    """Why a policy has no use for the value of a parameter; None where it may be set."""
    width = manifest.action.width
    if name in ("safety.lower", "safety.upper", "safety.max_step") and len(value or ()) not in (0, width):
        return f"{name} has {len(value)} entries; want {width}, one for each action dimension, or none."
    if name == "action.denoise_steps" and value > manifest.max_denoise_steps:
        return f"{name} is {value}; this engine takes at most {manifest.max_denoise_steps}."
    if name == "action.execute_steps" and value > manifest.horizon:
        return f"{name} is {value}; a chunk of this policy has {manifest.horizon} actions: want as many at most."
    return None
