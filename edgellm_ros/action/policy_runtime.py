"""A policy on this machine: one observation and one task in, one action chunk in robot units out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..backends.base import Backend, SamplingRow
from ..backends.registry import open_backend
from ..engine_format import open_engine_directory
from ..errors import ObservationError, PolicyError, RefusalCode, RequestError
from ..runtime.tokenizer import Tokenizer
from ..vision.pruner import VisualPrunerConfig
from .chunk import NANOSECONDS, ActionChunk, check_finite
from .context_engines import ContextEngines
from .denoiser import Denoiser
from .fingerprints import check_fingerprints
from .noise import DEFAULT_NOISE_SEED, NoiseStream, check_noise_seed, noise_digest, standard_normal
from .observation import Observation, check_images, check_state, normalised_state
from .policy_engines import PolicyEngines
from .policy_manifest import ACTION_DIRECTORY, Handoff, PolicyManifest, read_policy_manifest
from .prompt import prompt_text
from .reasoning_engines import OnText, Reasoning, ReasoningEngines
from .recordings import Recordings
from .solver import RealTimeChunking


class PolicyRuntime:
    """Loads ``engine_dir`` and computes chunks, one at a time, on the thread that calls.

    :raises PolicyError: the directory holds no policy, or engines that are not those of its manifest.
    :raises EngineDirectoryError, BackendError, MissingPackageError: as ``open_engine_directory`` and ``open_backend``.
    """

    def __init__(self, engine_dir: Path | str, *, backend: str | Backend = "auto", threads: int = 0) -> None:
        directory = open_engine_directory(engine_dir)
        self.path = directory.path
        if not (self.path / ACTION_DIRECTORY).is_dir():
            raise PolicyError(f"{self.path} holds no policy; want an engine directory built from one.")
        self.manifest: PolicyManifest = read_policy_manifest(self.path / ACTION_DIRECTORY)
        check_fingerprints(directory, self.manifest)
        with ExitStack() as undo:
            if isinstance(backend, str):
                opened = open_backend(backend, threads=threads, directory=directory)
                self._backend = undo.enter_context(closing(opened))
            else:
                self._backend = backend
            self.tokenizer = Tokenizer.from_directory(self.path)
            self._engines: PolicyEngines | ContextEngines | ReasoningEngines
            driving = self.manifest.driving
            self.reasoning_sampling = SamplingRow()
            self.reasoning_tokens: int | None = None  # that are said at most; None: the policy's own number
            if driving is not None:
                self._engines = ReasoningEngines(directory, self.manifest, self._backend, self.tokenizer)
                self.reasoning_sampling = SamplingRow(driving.temperature, top_p=driving.top_p)
            elif self.manifest.handoff is Handoff.CONTEXT:
                self._engines = ContextEngines(self.path, self.manifest, self._backend, self.tokenizer)
            else:
                self._engines = PolicyEngines(self.path, self.manifest, self._backend)
            undo.callback(self._engines.close)
            self._stopwatch = undo.enter_context(closing(self._backend.stopwatch()))
            self._denoiser = Denoiser(self._engines, self.manifest, self._backend, self._stopwatch)
            self._prompts: dict[str, list[int]] = {}
            self.noise_seed = DEFAULT_NOISE_SEED
            self._closing = undo.pop_all()

    @property
    def backend(self) -> Backend:
        """The device it runs on."""
        return self._backend

    @property
    def recordings(self) -> Recordings:
        """What of a chunk's work the device replays, and why the rest is not recorded."""
        return self._engines.recordings

    @property
    def prefix_length(self) -> int:
        """Rows that the actions of the last chunk looked at."""
        return self._engines.prefix_length

    def set_action_noise_seed(self, seed: int) -> None:
        """Seed of every later chunk that is given none, int32. :raises RequestError: it is no int32."""
        self.noise_seed = check_noise_seed(seed)

    def warm_up(self) -> None:
        """Compute one chunk of nothing, so that the first one is as fast as the next."""
        manifest = self.manifest
        height, width = manifest.image_size
        driving = manifest.driving
        shape = (height, width, 3) if driving is None else (driving.frames, height, width, 3)
        still = None if driving is None else np.zeros((driving.history.points, 3))
        middle = manifest.robot.state_to_robot(manifest.state.normalization.unnormalize(np.zeros(manifest.state.width)))
        images = {slot.name: np.zeros(shape, np.uint8) for slot in manifest.cameras}
        self.compute(Observation(images, middle, history=still), "wait", denoise_steps=1)

    def check_task(self, task: str) -> None:
        """:raises RequestError: the task is empty or too long, whatever the state."""
        self.encode_task(task, np.zeros(self.manifest.state.width))

    def encode_task(self, task: str, state: np.ndarray | None = None) -> list[int]:
        """Ids of the prompt for a task; ``state`` is the normalised one, for policies that read it as words.

        :raises RequestError: an empty task, or a prompt beyond the policy's limit (it is never cut).
        """
        if not task.strip() and self.manifest.driving is not None:
            task = self.manifest.driving.task
        if not task.strip():
            raise RequestError("the task is empty; say what the robot is to do.", RefusalCode.EMPTY_PROMPT)
        text = prompt_text(self.manifest, task, state)
        # else the engines put the task between its marks
        framed = self.manifest.handoff is not Handoff.CONTEXT and self.manifest.driving is None
        if text not in self._prompts:
            ids = self.tokenizer.encode(text, add_special_tokens=framed, allow_control=False)
            if len(ids) > self.manifest.prompt_tokens:
                raise RequestError(
                    f"the task has {len(ids)} tokens; the policy takes {self.manifest.prompt_tokens}: say it in "
                    "fewer words.",
                    RefusalCode.INPUT_TOO_LONG,
                )
            self._prompts.clear()  # one task at a time, for as long as it takes
            self._prompts[text] = ids
        return self._prompts[text]

    def compute(
        self,
        observation: Observation,
        task: str,
        *,
        noise_seed: int | None = None,
        noise: np.ndarray | None = None,
        stream: NoiseStream = NoiseStream.LIBSTDCXX,
        denoise_steps: int = 0,
        chunking: RealTimeChunking | None = None,
        committed: np.ndarray | None = None,
        visual_pruner: VisualPrunerConfig | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        on_text: OnText = lambda text: None,
    ) -> ActionChunk | None:
        """One chunk; None when ``cancelled`` said so.

        It is asked between two steps; where a device replays the whole loop, which takes it milliseconds, before that.
        Parts are timed on the device's clock. ``images`` lasts from the call until the pictures lie prepared where the
        tower takes them: the host's checks, launches and uploads, and what the device prepares behind them. Of a policy
        that reasons it is the host's share alone; a GPU's share is in ``vision``, which knows pictures seen before.

        :param noise: float32 [H,padded] or [H,A] to start from instead of a seed's.
        :param denoise_steps: 0 takes the policy's own number.
        :param on_text: is given each piece of what a policy says before it drives.
        :param committed: rows [n,A] in robot units that the robot is bound to from the start on; with ``chunking``.
        :param visual_pruner: leaves visual tokens out; nothing is left out where it is None.
        :raises ObservationError: a camera or a number is missing or unusable.
        :raises RequestError: the task, seed or number of steps is refused.
        :raises ChunkError: the chunk holds NaN or infinity.
        """
        manifest, started, clock = self.manifest, time.perf_counter(), self._stopwatch
        clock.start()
        state = manifest.robot.state_to_policy(check_state(observation.state, manifest))
        pictures = check_images(observation.images, manifest)
        normalised = normalised_state(state, manifest)
        ids = self.encode_task(task, normalised)
        seed = self.noise_seed if noise_seed is None else check_noise_seed(noise_seed)
        x0 = self._starting_noise(seed, noise, stream)
        schedule = self._denoiser.schedule(denoise_steps)
        processed: Any = self._engines.fit([image for _, image in pictures])
        clock.lap("images")
        self._engines.encode_images(processed)
        clock.lap("vision")
        reasoning, pruner = "", visual_pruner or VisualPrunerConfig()
        if isinstance(self._engines, ReasoningEngines):
            history = _history(observation)
            sampling = replace(self.reasoning_sampling, seed=seed % (1 << 64))
            said = self._engines.reason(ids, Reasoning(history, sampling, self.reasoning_tokens, on_text, cancelled))
            if said is None:
                return None
            reasoning, pruning = said, self._engines.pruned(pruner)
        else:
            pruning = self._engines.run_prefix(ids, manifest.state.pad(normalised), pruner)
        clock.lap("prefix")
        target = None if committed is None else self._committed(committed, state)
        result = self._denoiser.denoise(x0, schedule, chunking, target, cancelled)
        if result is None:
            return None
        rows = self._robot_units(result, state)
        return ActionChunk(
            rows,
            observation.stamp,
            round(manifest.step_time * NANOSECONDS),
            manifest.action.names,
            manifest.action.units,
            seed,
            noise_digest(x0),
            result,
            pruning,
            {
                **{f"{name}_ms": 1e3 * seconds for name, seconds in clock.seconds().items()},
                "total_ms": 1e3 * (time.perf_counter() - started),
            },
            reasoning,
            None
            if manifest.driving is None
            else manifest.driving.path(rows, _history(observation), manifest.step_time),
        )

    def _starting_noise(self, seed: int, noise: np.ndarray | None, stream: NoiseStream) -> np.ndarray:
        shape = (self.manifest.rows, self.manifest.action.padded)
        if noise is None:
            return standard_normal(seed, shape, stream)
        with np.errstate(over="ignore"):
            given = np.asarray(noise, dtype=np.float32)
        if given.shape != shape or not np.isfinite(given).all():
            raise ObservationError(f"the noise has shape {given.shape}; want finite float32 of shape {shape}.")
        return given

    def _committed(self, rows: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Robot units as the network's numbers, float32 [n,padded]."""
        action = self.manifest.action
        if np.size(rows) == 0:
            return np.empty((0, action.padded), np.float32)
        values = self.manifest.robot.actions_to_policy(rows)
        for index in self.manifest.delta_dimensions:
            values[:, index] -= state[index]
        return action.pad(action.normalization.normalize(values))

    def _robot_units(self, result: np.ndarray, state: np.ndarray) -> np.ndarray:
        action = self.manifest.action
        check_finite(result, action.names)
        rows = action.normalization.unnormalize(result).astype(np.float64)
        for index in self.manifest.delta_dimensions:
            rows[:, index] += state[index]
        rows = self.manifest.robot.actions_to_robot(rows)
        check_finite(rows, action.names)
        return rows if self.manifest.driving is None else self.manifest.driving.limited(rows)

    def close(self) -> None:
        """Let go of the engines; a second call does nothing."""
        self._closing.close()

    def __enter__(self) -> PolicyRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _history(observation: Observation) -> np.ndarray:
    """:raises ObservationError: there is none."""
    if observation.history is None:
        raise ObservationError("the policy drives by where the vehicle was; give the history of its positions.")
    return np.asarray(observation.history, dtype=np.float64)
