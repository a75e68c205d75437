"""Which episodes and questions a run without a reader goes through: the first of each kind from a seed on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from .episodes import draw_episode
from .questions import Question, QuestionKind, draw_question
from .tasks import TaskKind


def first_episodes(seed: int) -> Iterator[tuple[int, str]]:
    """Seed and name of the first episode of each kind of task."""
    wanted = {kind: kind.name.lower().replace("_", " ") for kind in TaskKind}
    for number in itertools.count(seed):
        name = wanted.pop(draw_episode(number).task.kind, None)
        if name is not None:
            yield number, name
        if not wanted:
            return


def first_questions(seed: int) -> Iterator[tuple[int, Question]]:
    """The first question of each kind that ends in a question mark, and the seed of the scene that it is about."""
    wanted = set(QuestionKind)
    for number in itertools.count(seed):
        worlds = draw_episode(number).worlds
        for kind in sorted(wanted):
            question = draw_question(np.random.default_rng([number, 74]), worlds, kind)
            if question is not None and question.text.endswith("?"):
                wanted.discard(kind)
                yield number, question
                break
        if not wanted:
            return
