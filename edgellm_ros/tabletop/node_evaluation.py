"""The same evaluation through the node and its topics, in real time."""

from __future__ import annotations

from typing import Any

import numpy as np

from .client import TabletopClient
from .episodes import draw_episode
from .evaluation import EvaluationSettings, Progress, run_baselines
from .evaluation_summary import Answered, Outcome, summarise
from .node_episodes import act, answer
from .questions import draw_question, is_right


def evaluate_node(
    client: TabletopClient, executor: Any, settings: EvaluationSettings, progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """See ``evaluate``; questions are about the scenes of the motion tasks. The node has the settings already.

    :raises EdgeLLMError: the world or the node does not answer.
    """
    latencies: list[float] = []

    def run(name: str, count: int, *, held_out: bool) -> list[Outcome]:
        outcomes = []
        for index in range(count):
            task = client.reset(executor, settings.seed + index, held_out=held_out)
            found = act(client, executor, task)
            if found.report.get("chunk_s"):
                latencies.append(1000.0 * float(found.report["chunk_s"]))  # of its last chunk
            outcomes.append(Outcome(found.score["kind"], found.success, found.trace, found.staleness_ms))
            progress(name, index + 1, count)
        return outcomes

    seen = run("seen", settings.episodes, held_out=False)
    unseen = run("held out", settings.held_out, held_out=True)
    answers: list[Answered] = []
    number = settings.seed
    while len(answers) < settings.questions:
        question = draw_question(np.random.default_rng([number, 74]), draw_episode(number).worlds)
        if question is not None and question.text.endswith("?"):  # how the node tells a question from a task
            client.reset(executor, number)
            said, _ = answer(client, executor, question.text)
            answers.append(Answered(question.kind.name.lower(), is_right(question, said)))
            progress("questions", len(answers), settings.questions)
        number += 1
    result = {"mode": "node", "seed": settings.seed, **summarise(seen, unseen, answers, latencies)}
    controls = run_baselines(settings, progress)
    return {**result, "controls": controls} if controls else result
