"""Episodes and questions through topics: the node acts, the world judges."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import EdgeLLMError, RefusalCode
from ..ros.client import pairs, spin_until
from .client import TabletopClient
from .episodes import EPISODE_TICKS
from .expert import TICK
from .smoothness import CommandTrace
from .trajectory_follower import NANOSECONDS

EPISODE = EPISODE_TICKS * TICK  # s
MOVING = 2.0  # s for the arm to set off; before that, rest is not the end
RESTING_CHUNKS = 2  # that leave the arm where it is: without them it rests because none came
LEAST_CHUNKS = 20  # in an episode of full length; one on a machine that stalls goes on, but not for ever
LONGEST = 4.0  # times the length of an episode
ANSWER_TIMEOUT = 60.0  # s, of the wall
_BETWEEN_SCORES = 0.3  # s


@dataclass(frozen=True)
class NodeEpisode:
    """What became of one task; ``score`` has the fields of ``Score``, ``report`` those of the node's report."""

    score: dict[str, Any]
    report: dict[str, str]
    seeds: tuple[int, ...]
    staleness_ms: tuple[float, ...]
    trace: CommandTrace = field(repr=False)

    @property
    def success(self) -> bool:
        """Judged from the world's state after one still second."""
        return bool(self.score["success"])


def act(
    client: TabletopClient,
    executor: Any,
    task: str,
    *,
    limit: float = EPISODE,
    on_tick: Callable[[], None] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> NodeEpisode:
    """Have the node do a task until its chunks let the arm rest, for ``limit`` seconds of the world, or until it is
    ``stopped``; then hold, and judge. What ``on_tick`` raises ends it without.

    :raises EdgeLLMError: the world or the node does not answer.
    """
    client.catch_up(executor)
    begun, told, chunks = client.now, len(client.reports), len(client.seeds)
    moved = chunks
    client.ask(task)
    while len(client.reports) == told and not stopped():  # the node may give the task up
        spin_until(executor, lambda: len(client.reports) > told, _BETWEEN_SCORES)
        on_tick()
        passed = (client.now - begun) / NANOSECONDS
        if not client.score(executor)["still"]:
            moved = len(client.seeds)
        elif passed >= MOVING and len(client.seeds) >= moved + RESTING_CHUNKS:
            break
        if passed >= limit and (len(client.seeds) - chunks >= LEAST_CHUNKS or passed >= LONGEST * limit):
            break
    client.cancel()
    _wait_for_report(client, executor, told, on_tick, "The node does not report the end of its task; see its log.")
    held = client.now
    client.wait(executor, lambda: client.now - held > 1.1 * NANOSECONDS, ANSWER_TIMEOUT)
    score = client.score(executor)
    return NodeEpisode(
        score, pairs(client.reports[-1]), tuple(client.seeds), tuple(client.staleness_ms), client.smoothness()
    )


def _wait_for_report(
    client: TabletopClient, executor: Any, told: int, on_tick: Callable[[], None], sentence: str
) -> None:
    end = time.monotonic() + ANSWER_TIMEOUT
    while not spin_until(executor, lambda: len(client.reports) > told, _BETWEEN_SCORES):
        on_tick()
        if time.monotonic() > end:
            raise EdgeLLMError(sentence, RefusalCode.NOT_ACTIVE)


def answer(
    client: TabletopClient, executor: Any, question: str, *, on_tick: Callable[[], None] = lambda: None
) -> tuple[str, dict[str, str]]:
    """The node's answer to a question about what it sees now, and its report; empty when it was refused.

    ``on_tick`` is called while nothing comes; what it raises ends the wait.

    :raises EdgeLLMError: the node does not answer.
    """
    answered, told = len(client.responses), len(client.reports)
    client.ask(question)
    sentence = f"No answer came within {ANSWER_TIMEOUT:g} s; see the log of the node."
    _wait_for_report(client, executor, told, on_tick, sentence)
    report = pairs(client.reports[-1])
    if report["refusal_code"]:
        return "", report
    spin_until(executor, lambda: len(client.responses) > answered, ANSWER_TIMEOUT)
    return client.responses[-1].strip(), report
