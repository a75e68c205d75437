"""Episodes: drawn from seeds alone, solved by the expert, failed by doing nothing, judged by the world's state."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from edgellm_ros.tabletop import objects
from edgellm_ros.tabletop.episodes import advance, draw_episode, draw_question_episode, hold_still, run_episodes
from edgellm_ros.tabletop.expert import expert_command
from edgellm_ros.tabletop.physics import Worlds
from edgellm_ros.tabletop.questions import PHRASES, QuestionKind, draw_question, facts_of, is_right
from edgellm_ros.tabletop.render import render_views
from edgellm_ros.tabletop.scenes import draw_scene
from edgellm_ros.tabletop.tasks import Task, TaskBatch, TaskKind, phrases, short_names, succeeded, task_text


def expert_run(seeds: range, held_out: bool = False) -> tuple[Worlds, TaskBatch, str]:
    """Follow the expert for eight seconds; also a digest of every picture of the first world."""
    episodes = [draw_episode(seed, held_out=held_out) for seed in seeds]
    worlds = Worlds.stack([episode.worlds for episode in episodes])
    tasks = TaskBatch.of([episode.task for episode in episodes])
    digest = hashlib.sha256()
    for tick in range(120):
        if tick % 20 == 0:
            digest.update(render_views(worlds, 0).tobytes())
        advance(worlds, expert_command(worlds, tasks))
    hold_still(worlds)
    digest.update(worlds.position.tobytes() + worlds.joints.tobytes())
    return worlds, tasks, digest.hexdigest()


@pytest.mark.parametrize("held_out", [False, True], ids=["seen", "held out"])
def test_the_expert_solves_what_is_drawn(held_out):
    worlds, tasks, _ = expert_run(range(60), held_out)
    assert set(tasks.kind.tolist()) == {int(kind) for kind in TaskKind}
    assert succeeded(worlds, tasks).all()


def test_a_seed_gives_the_same_episode_byte_for_byte():
    assert expert_run(range(7, 10))[2] == expert_run(range(7, 10))[2] != expert_run(range(8, 11))[2]


def test_doing_nothing_or_anything_does_not_count_as_success():
    episodes = [draw_episode(seed) for seed in range(60)]
    noise = np.random.default_rng(0)

    def still(images, joints, texts):
        return np.repeat(joints[:, None], 16, axis=1)

    def wild(images, joints, texts):
        return joints[:, None] + np.cumsum(noise.normal(0.0, 0.1, (len(joints), 16, 4)), axis=1)

    assert run_episodes(still, episodes, execute=15, ticks=30).mean() < 0.02
    assert run_episodes(wild, episodes, execute=15, ticks=60).mean() < 0.15


def test_the_policy_sees_pictures_joints_and_text_alone():
    seen = []

    def spy(images, joints, texts):
        seen.append((images, joints, texts))
        return np.repeat(joints[:, None], 4, axis=1)

    run_episodes(spy, [draw_episode(1)], execute=4, ticks=4, texts=["touch the sky"])
    images, joints, texts = seen[0]
    assert images.shape == (1, 2, 128, 128, 3) and images.dtype == np.uint8
    assert joints.shape == (1, 4)
    assert texts == ["touch the sky"]


def test_held_out_combinations_appear_only_where_asked_for():
    held_out = set(objects.HELD_OUT_COMBINATIONS)
    rng = np.random.default_rng(3)
    for _ in range(200):
        worlds = draw_scene(rng, repeats=True, strange=0.3)
        count = int(worlds.present[0].sum())
        pairs = set(zip(worlds.colour[0, :count].tolist(), worlds.shape[0, :count].tolist(), strict=True))
        assert not pairs & held_out
    for seed in range(40):
        episode = draw_episode(seed, held_out=True)
        assert (int(episode.worlds.colour[0, 0]), int(episode.worlds.shape[0, 0])) in held_out
    for index in range(len(objects.COLOUR_NAMES)):  # every word is still learned from other combinations
        assert any(colour == index for colour, _ in objects.SEEN_COMBINATIONS)


@pytest.mark.parametrize("kind", list(TaskKind), ids=lambda kind: kind.name.lower())
def test_tasks_name_their_objects_in_several_ways(kind):
    worlds = draw_scene(np.random.default_rng(1), fewest=3)
    task = Task(kind, 0, 1 if kind == TaskKind.PUT else -1)
    texts = {task_text(task, worlds.colour[0], worlds.shape[0], phrase) for phrase in range(len(phrases(kind)))}
    name = objects.describe(int(worlds.colour[0, 0]), int(worlds.shape[0, 0]))
    assert len(texts) >= 5 and all(name in text for text in texts)


def test_short_names_single_an_object_out():
    colour, shape = np.array([0, 0, 3]), np.array([0, 1, 1])
    present = np.ones(3, dtype=bool)
    assert short_names(colour, shape, present, 0) == ["cube"]
    assert short_names(colour, shape, present, 1) == []
    assert short_names(colour, shape, present, 2) == ["green one", "green object"]


@pytest.mark.parametrize("kind", list(QuestionKind), ids=lambda kind: kind.name.lower())
def test_template_answers_are_right_and_others_wrong(kind):
    rng = np.random.default_rng(5)
    drawn = [question for _ in range(60) if (question := draw_question(rng, draw_scene(rng, fewest=2), kind))]
    assert len(drawn) > 10
    assert len({question.text.split(" the ")[0] for question in drawn}) >= len(PHRASES[kind]) - 2
    for question, other in itertools.pairwise(drawn):
        assert is_right(question, question.answer)
        assert is_right(question, other.answer) == (question.facts == other.facts)
        assert not is_right(question, "")


def test_the_judge_of_lists_ignores_order():
    answer = "A red cube, an orange ring and a pink disc."
    assert facts_of(QuestionKind.LIST, answer) == facts_of(QuestionKind.LIST, "Pink disc, orange ring, red cube")


def test_questions_come_from_their_seed():
    first, second = draw_question_episode(11), draw_question_episode(11)
    assert first[1] == second[1]
    assert np.array_equal(first[0].position, second[0].position)
