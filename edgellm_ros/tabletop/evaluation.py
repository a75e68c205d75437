"""How well an engine does on this tabletop, with the world in the same process and waiting for every chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..action.policy_runtime import PolicyRuntime
from ..runtime.inference_runtime import LLMInferenceRuntime
from .engine_policy import EnginePolicy, answer
from .episodes import EPISODE_TICKS, Episode, Policy, draw_episode, draw_question_episode, run_episodes
from .expert import TICK
from .geometry import Array
from .questions import is_right
from .render import render_views
from .tasks import TaskKind

TOGETHER = 25  # worlds that take turns
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class EvaluationSettings:
    """What is run; every number of episodes may be 0."""

    episodes: int = 300
    held_out: int = 150
    questions: int = 500
    controls: int = 0  # episodes of each baseline and each control
    seed: int = 0
    execute: int = 6  # rows of a chunk that are followed before the next one is asked for
    denoise_steps: int = 0  # 0: the policy's own
    threads: int = 0
    backend: str = "auto"


def evaluate(engine_dir: Path, settings: EvaluationSettings, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Success, accuracy, latency and smoothness as one JSON-able object.

    Seeds of episodes and questions begin at ``settings.seed``; training draws from other generators. The jerk is the
    mean size of the third difference of the joint commands, in rad/s^3, at seams between chunks and elsewhere.

    :raises EdgeLLMError: the directory is no engine of a policy, or a setting is refused.
    """
    seen = [draw_episode(settings.seed + index) for index in range(max(settings.episodes, settings.controls))]
    unseen = [draw_episode(settings.seed + index, held_out=True) for index in range(settings.held_out)]
    result: dict[str, Any] = {"mode": "in_process", "seed": settings.seed, "execute_steps": settings.execute}
    with PolicyRuntime(engine_dir, backend=settings.backend, threads=settings.threads) as runtime:
        policy = EnginePolicy(runtime, denoise_steps=settings.denoise_steps)
        commands: list[Array] = []
        won = _run("seen", policy, seen[: settings.episodes], settings, progress, commands=commands)
        result["episodes"], result["success_rate"] = len(won), _mean(won)
        result["per_task"] = {
            kind.name.lower(): _mean(won[[e.task.kind == kind for e in seen[: settings.episodes]]]) for kind in TaskKind
        }
        if policy.latencies_ms:
            median, high = np.percentile(policy.latencies_ms, [50, 95])
            result["chunk_latency_ms"] = {"median": round(median, 2), "p95": round(high, 2)}
        result["seam_jerk"] = seam_jerk(commands, settings.execute)
        result["staleness_ms"] = 0.0  # the world waits
        found = _run("held out", policy, unseen, settings, progress)
        result["held_out"] = {"episodes": len(found), "success_rate": _mean(found)}
        if settings.controls:
            result["controls"] = _controls(policy, seen[: settings.controls], settings, progress)
    result |= _questions(engine_dir, settings, progress)
    return result


def no_op(images: Array, joints: Array, texts: list[str]) -> Array:
    """A policy that stays where it is."""
    return np.repeat(joints[:, None], 16, axis=1)


def random_policy(seed: int) -> Policy:
    """A policy whose joints wander."""
    rng = np.random.default_rng([seed, 73])

    def wander(images: Array, joints: Array, texts: list[str]) -> Array:
        steps = rng.normal(0.0, 0.1, (len(joints), 16, joints.shape[1]))
        return np.asarray(joints[:, None] + np.cumsum(steps, axis=1))

    return wander


def _controls(
    policy: Policy, episodes: list[Episode], settings: EvaluationSettings, progress: Progress
) -> dict[str, float | None]:
    """What must fail: doing nothing, doing anything, hearing another's task, seeing nothing."""
    texts = [episode.text for episode in episodes]
    others = texts[1:] + texts[:1]
    return {
        "no_op": _mean(_run("no-op", no_op, episodes, settings, progress)),
        "random": _mean(_run("random", random_policy(settings.seed), episodes, settings, progress)),
        "shuffled_prompts": _mean(_run("shuffled prompts", policy, episodes, settings, progress, texts=others)),
        "black_cameras": _mean(_run("black cameras", policy, episodes, settings, progress, blind=True)),
    }


def _run(
    name: str,
    policy: Policy,
    episodes: list[Episode],
    settings: EvaluationSettings,
    progress: Progress,
    texts: list[str] | None = None,
    blind: bool = False,
    commands: list[Array] | None = None,
) -> Array:
    won: list[bool] = []
    for start in range(0, len(episodes), TOGETHER):
        part = slice(start, start + TOGETHER)
        trace: list[Array] = []
        said = None if texts is None else texts[part]
        found = run_episodes(
            policy,
            episodes[part],
            execute=settings.execute,
            ticks=EPISODE_TICKS,
            texts=said,
            blind=blind,
            commands=trace,
        )
        won += found.tolist()
        if commands is not None:
            commands.append(np.stack(trace))
        progress(name, len(won), len(episodes))
    return np.array(won, dtype=bool)


def seam_jerk(commands: list[Array], execute: int) -> dict[str, float]:
    """Mean third difference of the three arm joints, where chunks meet and elsewhere, in rad/s^3."""
    seams: list[float] = []
    others: list[float] = []
    for trace in commands:
        size = np.abs(np.diff(trace[:, :, :3], n=3, axis=0)).mean(axis=(1, 2)) / TICK**3
        # The third difference at index i spans ticks i to i+3; it meets a seam where a chunk begins inside that span.
        at_seam = np.array([any((index + step) % execute == 0 for step in (1, 2, 3)) for index in range(len(size))])
        seams += size[at_seam].tolist()
        others += size[~at_seam].tolist()
    return {name: round(float(np.mean(v)), 2) for name, v in (("seams", seams), ("elsewhere", others)) if v}


def _questions(engine_dir: Path, settings: EvaluationSettings, progress: Progress) -> dict[str, Any]:
    right: dict[str, list[bool]] = {}
    if settings.questions:
        with LLMInferenceRuntime(engine_dir, backend=settings.backend, threads=settings.threads) as runtime:
            for index in range(settings.questions):
                worlds, question = draw_question_episode(settings.seed + index)
                said = answer(runtime, list(render_views(worlds, 0)), question.text)
                right.setdefault(question.kind.name.lower(), []).append(is_right(question, said))
                progress("questions", index + 1, settings.questions)
    everything = [value for values in right.values() for value in values]
    return {
        "questions": len(everything),
        "answer_accuracy": _mean(everything),
        "per_question": {name: _mean(values) for name, values in sorted(right.items())},
    }


def _mean(values: Any) -> float | None:
    """The share of true ones; None of nothing."""
    return round(float(np.mean(values)), 4) if len(values) else None
