"""The worker's side of one task: observe, compute, let the chunk out, and again for as long as the task runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..action.chunk import NANOSECONDS, ActionLimits
from ..action.observation import Observation
from ..action.solver import RealTimeChunking
from ..action.timeline import ChunkTimeline, Splice
from ..errors import EdgeLLMError, Refusal, RefusalCode
from ..runtime.request import FinishReason, LLMGenerationResponse
from .generation_run import Outputs, publish_piece
from .joint_states import JointTracker
from .motion import Motion, MotionSettings
from .parameters import Settings
from .prompt_request import PromptRequest, pruning_pairs
from .synchronizer import FrameSet

if TYPE_CHECKING:
    from .driving_inputs import DrivingInputs
    from .images import CameraInputs
    from .policy_host import PolicyHost

_LATENCIES = 8  # chunks whose time tells how long the next will take
_RETRY = 0.02  # s between looks at an observation that cannot be used
_LOOK_AGAIN = 0.1  # s at most until the next look where the newest observation could not be used
_LONGEST_PAUSE = 3600.0  # s; a rate may be close to none
_ONE_BY_ONE_WAIT = 0.5  # s for the joint states that belong to an image


class Clock(Protocol):
    """The node's clock."""

    def __call__(self) -> int:
        """Now, in ns."""
        ...


class TaskHandle:
    """What stops a task: the same calls as those of a request of the text engine."""

    def __init__(self) -> None:
        self._cancelled, self._done = threading.Event(), threading.Event()

    def cancel(self) -> None:
        """Stop at the next denoise step."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether it is to stop."""
        return self._cancelled.is_set()

    def wait(self, timeout: float) -> bool:
        """Sleep, or wake up when it is to stop; True then."""
        return self._cancelled.wait(timeout)

    def done(self) -> bool:
        """Whether the worker has let go of it."""
        return self._done.is_set()

    def finish(self) -> None:
        """The worker lets go."""
        self._done.set()


class PolicyRun:
    """Belongs to the worker thread."""

    def __init__(
        self,
        request: PromptRequest,
        host: PolicyHost,
        cameras: CameraInputs,
        joints: JointTracker,
        motion: Motion,
        clock: Clock,
        settings: Callable[[], Settings],
        outputs: Outputs,
        driving: DrivingInputs | None = None,
    ) -> None:
        """``settings`` gives the parameters of the moment, for the chunks of a task that runs on.

        ``outputs`` takes what a policy says first; ``driving`` collects what one that drives observes.
        """
        self._request, self._host = request, host
        self._cameras, self._joints, self._motion = cameras, joints, motion
        self._clock, self._settings = clock, settings
        self._outputs, self._driving = outputs, driving
        self._handle = TaskHandle()
        self._refusal: Refusal | None = None
        self._latencies: list[float] = []
        self._last_stamp = 0
        self._chunks = 0
        self._said = ""  # by the last chunk's policy, before it drove

    def submit(self, turns: object) -> TaskHandle:
        """Check the task; history is nothing to a policy.

        :raises EdgeLLMError: the task cannot be read.
        """
        self._request.started = time.monotonic()
        try:
            self._host.runtime.check_task(self._request.prompt)
        except EdgeLLMError as error:
            self._motion.leave(error.refusal)
            raise
        return self._handle

    def stream(self) -> bool:
        """Run the task; True when it ended by itself or let itself be stopped."""
        try:
            self._run()
        except Exception as error:
            self._motion.stop(Refusal(RefusalCode.ENGINE_FAILED, f"The task failed ({type(error).__name__}: {error})."))
            raise
        finally:
            self._handle.finish()
        return True

    def result(self) -> tuple[LLMGenerationResponse, Refusal | None]:
        """What was said last, and why the task stopped; None where it did what it was to do."""
        response = LLMGenerationResponse()
        response.finish_reasons = [FinishReason.END_ID]
        response.output_texts = [self._said]
        return response, self._request.stop or self._refusal

    def _run(self) -> None:
        first = self._request.settings
        epoch = self._motion.begin(_timeline(first), self._clock(), runs_on=first.action.rate > 0)
        while not self._handle.cancelled:
            if self._left(first) <= 0:
                self._refusal = Refusal(RefusalCode.DEADLINE, "The task ran out of its time (generation.timeout).")
                self._motion.stop(self._refusal)
                return
            # A task that runs on takes up what was changed meanwhile; a single chunk keeps what its prompt came with.
            settings = self._settings() if first.action.rate > 0 else first
            begun, observation = time.monotonic(), None
            try:
                observation = self._observe(settings)
                if observation is None:
                    continue
                refusal = self._step(observation, settings, epoch)
            except EdgeLLMError as error:
                refusal = error.refusal
                now = 0 if settings.action.fixed_delay >= 0 else self._clock()  # a replay has times of its own
                self._motion.fault(refusal, now, hold=settings.safety.on_fault == "hold")
            if first.action.rate <= 0:
                self._refusal = refusal
                return
            if refusal is not None and self._handle.wait(_RETRY):
                return
            if settings.action.pairing == "latest":
                longest = _LONGEST_PAUSE if observation is not None else _LOOK_AGAIN
                pause = min(1.0 / first.action.rate - (time.monotonic() - begun), longest)
                self._handle.wait(max(0.0, min(pause, self._left(first))))

    def _left(self, settings: Settings) -> float:
        """Of the task's time, in s."""
        limit = settings.generation.timeout
        return self._request.started + limit - time.monotonic() if limit > 0 else float("inf")

    def _observe(self, settings: Settings) -> Observation | None:
        """What the robot sees and feels; None where there is nothing new yet.

        :raises EdgeLLMError: a camera or a joint is missing, too old or unreadable.
        """
        if settings.action.pairing == "every":
            return self._next_observation(settings)
        limit = self._request.settings.generation.timeout
        images = self._cameras.take(
            settings.images,
            stopped=self._may_not_wait,
            deadline=self._request.started + limit if limit > 0 else float("inf"),
        )
        if self._driving is not None:
            return self._driving.observation(images, settings.images)
        state, stamp = self._joints.state(self._clock(), settings.safety.max_state_age)
        pictures = dict(zip(images.cameras, images.images, strict=True))
        return Observation(pictures, state, images.stamp or stamp)

    def _may_not_wait(self) -> bool:
        """For pictures, whatever ``images.on_missing`` says: a robot that moves on old ones is to hold first."""
        return self._handle.cancelled or (self._request.settings.action.rate > 0 and self._motion.moving)

    def _next_observation(self, settings: Settings) -> Observation | None:
        live = settings.action.fixed_delay < 0  # a replay has times of its own
        if not self._last_stamp:
            newest = live or settings.action.rate <= 0
            self._last_stamp = self._before_newest(settings) if newest else self._cameras.used
        images = self._cameras.take_next(settings.images, after=self._last_stamp, timeout=_ONE_BY_ONE_WAIT)
        if images is None:
            return None
        self._last_stamp = images.stamp
        limit = settings.images.max_age
        age = (self._clock() - images.stamp) / NANOSECONDS
        if live and limit and age > limit:
            self._last_stamp = max(images.stamp, self._before_newest(settings))
            raise EdgeLLMError(
                f"The next images in order are {age:.2f} s old; images.max_age allows {limit:g} s.",
                RefusalCode.STALE_OBSERVATION,
            )
        if self._driving is not None:
            return self._driving.observation(images, settings.images)
        found = self._joints.at(images.stamp, _ONE_BY_ONE_WAIT)
        if found is None:
            raise EdgeLLMError(
                f"No joint states belong to the images of {images.stamp / NANOSECONDS:.3f} s; check the topic "
                "joint_states.",
                RefusalCode.STALE_OBSERVATION,
            )
        state, stamp = found
        age = (images.stamp - stamp) / NANOSECONDS
        if settings.safety.max_state_age and age > settings.safety.max_state_age:
            raise EdgeLLMError(
                f"The joint states are {age:.2f} s older than the images; safety.max_state_age allows "
                f"{settings.safety.max_state_age:g} s.",
                RefusalCode.STALE_OBSERVATION,
            )
        return Observation(dict(zip(images.cameras, images.images, strict=True)), state, images.stamp)

    def _before_newest(self, settings: Settings) -> int:
        """The stamp (ns) behind which only the newest images are: of a robot, what waited until now is too late."""
        newest = self._cameras.frames.select(0, slop=settings.images.sync_slop, max_age=0.0)
        return newest.stamp - 1 if isinstance(newest, FrameSet) else 0

    def _step(self, observation: Observation, settings: Settings, epoch: int) -> Refusal | None:
        action = settings.action
        begun = time.perf_counter()
        chunking, committed = self._guidance(observation.stamp, action.splice, action.blend_steps, action.fixed_delay)
        try:
            chunk = self._host.compute(
                observation,
                self._request.prompt,
                action,
                chunking=chunking,
                committed=committed,
                pruner=settings.visual_pruner,
                cancelled=lambda: self._handle.cancelled,
                on_text=lambda text: publish_piece(self._request, self._outputs, text),
            )
        finally:
            self._request.seed = self._host.seed  # a report names it though nothing came of the chunk
        if chunk is None:
            return None
        self._latencies = [*self._latencies[1 - _LATENCIES :], (self._clock() - observation.stamp) / NANOSECONDS]
        position = self._host.positions(observation.state)
        outcome = self._motion.follow(chunk, _motion_settings(settings), self._clock(), epoch, position)
        refusal = outcome if isinstance(outcome, Refusal) else None
        if refusal is None:
            self._said = chunk.reasoning
            self._chunks += 1
            self._request.details |= {
                "chunks": self._chunks,
                "x0_digest": chunk.noise_digest,
                "observation_stamp": f"{chunk.stamp // NANOSECONDS}.{chunk.stamp % NANOSECONDS:09d}",
                **pruning_pairs(chunk.pruning),
                "chunk_s": time.perf_counter() - begun,
                **{f"chunk.{name}": value for name, value in chunk.timings.items()},
                **self._host.runtime.recordings.report(),
            }
        return refusal

    def _guidance(
        self, stamp: int, splice: str, blend_steps: int, fixed_delay: float
    ) -> tuple[RealTimeChunking | None, np.ndarray | None]:
        """What the next chunk is held to while it is computed, under real-time chunking."""
        manifest = self._host.manifest
        if splice != Splice.RTC.value:
            return None, None
        step = round(manifest.step_time * NANOSECONDS)
        committed = self._motion.committed(stamp, step, manifest.horizon)
        if not len(committed):
            return None, None
        expected = fixed_delay if fixed_delay >= 0 else max(self._latencies, default=0.0)
        chunking = RealTimeChunking.expecting(expected, manifest.step_time, blend_steps, len(committed))
        return chunking, committed


def _timeline(settings: Settings) -> ChunkTimeline:
    action = settings.action
    return ChunkTimeline(Splice(action.splice), execute_steps=action.execute_steps, blend_steps=action.blend_steps)


def _motion_settings(settings: Settings) -> MotionSettings:
    safety = settings.safety
    return MotionSettings(
        ActionLimits(safety.lower, safety.upper, safety.max_step),
        hold_on_fault=safety.on_fault == "hold",
        fixed_delay=settings.action.fixed_delay,
    )
