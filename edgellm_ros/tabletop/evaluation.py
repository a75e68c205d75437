"""How well an engine does on this tabletop, with the world in the same process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..action.chunk import NANOSECONDS, ActionChunk
from ..action.policy_runtime import PolicyRuntime
from ..action.solver import RealTimeChunking
from ..runtime.inference_runtime import LLMInferenceRuntime
from ..vision.pruner import VisualPrunerConfig
from .engine_policy import EnginePolicy, answer
from .episodes import Episode, draw_episode, draw_question_episode
from .evaluation_summary import Answered, Outcome, share, summarise
from .expert import TICK
from .geometry import JOINT_NAMES, Array
from .questions import is_right
from .render import render_views
from .timed_episodes import ChunkSource, Timing, run_timed

Progress = Callable[[str, int, int], None]
_HORIZON = 16
_WANDERING = 0.1  # rad a tick


@dataclass(frozen=True)
class EvaluationSettings:
    """What is run; every number of episodes may be 0."""

    episodes: int = 300
    held_out: int = 150
    questions: int = 500
    baselines: int = 0  # episodes of doing nothing, and of wandering
    controls: int = 0  # episodes of the policy with another's prompt, and with black pictures
    seed: int = 0
    timing: Timing = field(default_factory=Timing)
    denoise_steps: int = 0  # 0: the policy's own
    pruner: VisualPrunerConfig | None = None
    threads: int = 0
    backend: str = "auto"


def evaluate(engine_dir: Path, settings: EvaluationSettings, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Success, accuracy, latency and smoothness; see ``summarise``.

    Seeds of episodes and questions begin at ``settings.seed``; training draws from other generators. The noise of an
    episode's chunks comes from the episode's seed, so equal settings give equal episodes.

    :raises EdgeLLMError: the directory is no engine of a policy, or a setting is refused.
    """
    seen = _seen(settings, max(settings.episodes, settings.controls))
    unseen = [draw_episode(settings.seed + index, held_out=True) for index in range(settings.held_out)]
    with PolicyRuntime(engine_dir, backend=settings.backend, threads=settings.threads) as runtime:
        policy = EnginePolicy(runtime, denoise_steps=settings.denoise_steps, visual_pruner=settings.pruner)
        won = _run("seen", policy, seen[: settings.episodes], settings, progress)
        found = _run("held out", policy, unseen, settings, progress)
        latencies = list(policy.latencies_ms)
        controls = _controls(policy, seen[: settings.controls], settings, progress)
    controls = run_baselines(settings, progress) | controls
    answers = _answers(engine_dir, settings, progress)
    result = {"mode": "in_process", "seed": settings.seed, **summarise(won, found, answers, latencies)}
    return {**result, "controls": controls} if controls else result


def run_baselines(settings: EvaluationSettings, progress: Progress = lambda *_: None) -> dict[str, float | None]:
    """What doing nothing and wandering achieve; empty where they are not asked for."""
    if not settings.baselines:
        return {}
    episodes = _seen(settings, settings.baselines)
    runs = {
        "no_op": _run("no-op", Baseline(), episodes, settings, progress),
        "random": _run("random", Baseline(settings.seed), episodes, settings, progress),
    }
    return _shares(runs)


def _seen(settings: EvaluationSettings, count: int) -> list[Episode]:
    return [draw_episode(settings.seed + index) for index in range(count)]


def _shares(runs: dict[str, list[Outcome]]) -> dict[str, float | None]:
    return {name: share([row.success for row in rows]) for name, rows in runs.items()}


class Baseline:
    """A policy that neither looks nor listens: it stays where it is, or its joints wander."""

    horizon = _HORIZON

    def __init__(self, seed: int | None = None) -> None:
        """``seed`` of the wandering; None stays."""
        self._rng = None if seed is None else np.random.default_rng([seed, 73])

    def chunk(
        self,
        views: Array,
        joints: Array,
        text: str,
        stamp: int,
        chunking: RealTimeChunking | None = None,
        committed: Array | None = None,
    ) -> ActionChunk:
        """See ``ChunkSource``."""
        rows = np.repeat(joints[None], _HORIZON, axis=0)
        if self._rng is not None:
            rows = rows + np.cumsum(self._rng.normal(0.0, _WANDERING, rows.shape), axis=0)
        return ActionChunk(rows, stamp, round(TICK * NANOSECONDS), JOINT_NAMES, ("rad", "rad", "rad", "1"))


def _controls(
    policy: EnginePolicy, episodes: list[Episode], settings: EvaluationSettings, progress: Progress
) -> dict[str, float | None]:
    """What must fail: hearing another's task, and seeing nothing."""
    if not episodes:
        return {}
    others = [other_task(episode, episodes[(index + 1) % len(episodes)]) for index, episode in enumerate(episodes)]
    runs = {
        "shuffled_prompts": _run("shuffled prompts", policy, episodes, settings, progress, texts=others),
        "black_cameras": _run("black cameras", policy, episodes, settings, progress, blind=True),
    }
    return _shares(runs)


def other_task(episode: Episode, other: Episode) -> str:
    """The task of the other episode, or of the first one behind it that has another."""
    while other.text == episode.text:
        other = draw_episode(other.seed + 1)
    return other.text


def _run(
    name: str,
    source: ChunkSource,
    episodes: Sequence[Episode],
    settings: EvaluationSettings,
    progress: Progress,
    texts: list[str] | None = None,
    blind: bool = False,
) -> list[Outcome]:
    outcomes = []
    for index, episode in enumerate(episodes):
        if isinstance(source, EnginePolicy):
            source.restart(1000 * episode.seed)
        text = None if texts is None else texts[index]
        found = run_timed(source, episode, settings.timing, text=text, blind=blind)
        outcomes.append(Outcome(found.score.kind, found.score.success, found.trace, found.staleness_ms, found.late))
        progress(name, index + 1, len(episodes))
    return outcomes


def _answers(engine_dir: Path, settings: EvaluationSettings, progress: Progress) -> list[Answered]:
    if not settings.questions:
        return []
    answers = []
    with LLMInferenceRuntime(engine_dir, backend=settings.backend, threads=settings.threads) as runtime:
        for index in range(settings.questions):
            worlds, question = draw_question_episode(settings.seed + index)
            said = answer(runtime, list(render_views(worlds, 0)), question.text, visual_pruner=settings.pruner)
            answers.append(Answered(question.kind.name.lower(), is_right(question, said)))
            progress("questions", index + 1, settings.questions)
    return answers
