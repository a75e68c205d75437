"""A trained torch policy in closed loop, and its answers: for evaluation, and for states that it gets itself into."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from edgellm_ros.tabletop.episodes import Episode, advance, draw_episode, draw_question_episode, run_episodes
from edgellm_ros.tabletop.physics import Worlds
from edgellm_ros.tabletop.questions import is_right
from edgellm_ros.tabletop.render import render_views
from edgellm_ros.tabletop.scenes import draw_scene, draw_task
from edgellm_ros.tabletop.tasks import TaskBatch, TaskKind, phrases, task_text
from training.tabletop.model import SmolVla
from training.tabletop.rollouts import Snapshots
from training.tabletop.text import TASK_LIMIT, Codec


class TorchPolicy:
    """``SmolVla`` as a policy in robot units; ``statistics`` holds state and action mean and std."""

    def __init__(
        self, model: SmolVla, statistics: dict[str, list[float]], codec: Codec, steps: int = 10, seed: int = 5
    ):
        self.model, self.codec, self.steps = model.eval(), codec, steps
        self.device = next(model.parameters()).device
        self.statistics = {key: torch.tensor(value, device=self.device) for key, value in statistics.items()}
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def pixels(self, images: np.ndarray) -> torch.Tensor:
        """Pictures uint8 [B,C,128,128,3] as the tower takes them."""
        return torch.from_numpy(images).to(self.device).permute(0, 1, 4, 2, 3).float() / 127.5 - 1.0

    @torch.no_grad()
    def __call__(self, images: np.ndarray, joints: np.ndarray, texts: list[str]) -> np.ndarray:
        ids = torch.zeros(len(texts), TASK_LIMIT, dtype=torch.long)
        lengths = torch.zeros(len(texts), dtype=torch.long)
        for row, text in enumerate(texts):
            task = self.codec.task(text)
            ids[row, : len(task)] = torch.tensor(task)
            lengths[row] = len(task)
        mask = torch.arange(TASK_LIMIT)[None] < lengths[:, None]
        state = torch.from_numpy(joints).float().to(self.device)
        state = (state - self.statistics["state_mean"]) / (self.statistics["state_std"] + 1e-8)
        sizes = self.model.sizes
        noise = torch.randn(len(texts), sizes.horizon, sizes.action, generator=self.generator, device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            chunk = self.model.act(
                self.pixels(images), ids.to(self.device), mask.to(self.device), state, noise, self.steps
            )
        chunk = chunk.float() * self.statistics["action_std"] + self.statistics["action_mean"]
        return chunk.double().cpu().numpy()

    @torch.no_grad()
    def answer(self, images: np.ndarray, questions: list[str], longest: int = 40) -> list[str]:
        """Greedy answers; a batch is decoded without a cache, which is fine for this size."""
        heads = [list(self.codec.dialogue(question, None)[0]) for question in questions]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            tokens = self.model.image_tokens(self.model.patches(self.pixels(images)))
            answers: list[list[int]] = [[] for _ in heads]
            for _ in range(longest):
                rows = [head + answer for head, answer in zip(heads, answers, strict=True)]
                length = max(len(row) for row in rows)
                ids = torch.tensor([row + [0] * (length - len(row)) for row in rows], device=self.device)
                logits = self.model.logits(tokens, ids, self.codec.ids["<image>"])
                last = torch.tensor([len(row) - 1 for row in rows], device=self.device)
                best = logits[torch.arange(len(rows), device=self.device), last].float().argmax(-1).tolist()
                for answer, token in zip(answers, best, strict=True):
                    answer.append(token)
                if all(self.codec.ids["<end_of_utterance>"] in answer for answer in answers):
                    break
        return [self.codec.decode(answer) for answer in answers]


def evaluate(policy: TorchPolicy, episodes: int, questions: int, seed: int = 0, execute: int = 6) -> dict[str, Any]:
    """Success on seen and held-out combinations, per kind of task, and the share of right answers."""
    seen = [draw_episode(seed + i) for i in range(episodes)]
    unseen = [draw_episode(seed + i, held_out=True) for i in range(episodes // 3)]
    result: dict[str, Any] = {}
    won = run_episodes(policy, seen, execute=execute)
    result["success"] = float(won.mean())
    for kind in TaskKind:
        chosen = np.array([episode.task.kind == kind for episode in seen])
        result[kind.name.lower()] = float(won[chosen].mean())
    result["held_out"] = float(run_episodes(policy, unseen, execute=execute).mean())
    result |= question_accuracy(policy, questions, seed)
    return result


def question_accuracy(policy: TorchPolicy, questions: int, seed: int = 0) -> dict[str, float]:
    """Share of right answers, in all and per kind of question."""
    right: dict[str, list[bool]] = {}
    drawn = [draw_question_episode(seed + i) for i in range(questions)]
    for start in range(0, questions, 128):
        part = drawn[start : start + 128]
        images = np.stack([render_views(worlds, 0) for worlds, _ in part])
        for (_, question), answer in zip(part, policy.answer(images, [q.text for _, q in part]), strict=True):
            right.setdefault(question.kind.name.lower(), []).append(is_right(question, answer))
    result = {f"answer_{name}": float(np.mean(values)) for name, values in right.items()}
    result["answers"] = float(np.mean(list(itertools.chain.from_iterable(right.values()))))
    return result


def own_states(
    policy: TorchPolicy, rng: np.random.Generator, count: int, ticks: int = 66, execute: int = 6
) -> Snapshots:
    """States that the policy reaches by itself, with the tasks it was at; the expert labels what comes next."""
    parts, tasks, texts = [], [], []
    for _ in range(count):
        worlds = draw_scene(rng)
        task = draw_task(rng, worlds)
        assert task is not None
        parts.append(worlds)
        tasks.append(task)
        phrase = int(rng.integers(len(phrases(task.kind))))
        texts.append(task_text(task, worlds.colour[0], worlds.shape[0], phrase))
    worlds, kept = Worlds.stack(parts), []
    for _ in range(0, ticks, execute):
        images = np.stack([render_views(worlds, row) for row in range(worlds.count)])
        chunk = policy(images, worlds.joints.copy(), texts)
        for step in range(execute):
            advance(worlds, chunk[:, step])
            if step == int(rng.integers(execute)):
                kept.append(worlds.copy())
    batch = TaskBatch.of(tasks)
    rows = np.tile(np.arange(count), len(kept))
    return Snapshots(Worlds.stack(kept), batch.take(rows))


__all__ = ["Episode", "TorchPolicy", "evaluate", "own_states", "question_accuracy"]
