"""Worker processes fill slots of shared memory with samples; a thread moves them into rings on the device."""

from __future__ import annotations

import multiprocessing as mp
import threading
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgellm_ros.tabletop.objects import MAX_OBJECTS
from training.tabletop.rollouts import HORIZON, Sample, Snapshots, choose_ticks, motion_sample, question_sample, roll
from training.tabletop.text import DIALOGUE_LIMIT, TASK_LIMIT, Codec

MOTIONS, QUESTIONS = 192, 64  # samples of each kind in one slot
WORLDS_A_ROLL, EACH = 64, 9
SHARED = {
    "images": ((2, 128, 128, 3), "uint8"),
    "marks": ((2, MAX_OBJECTS + 1, 2), "float32"),
    "looks": ((MAX_OBJECTS, 2), "int16"),
}
MOTION_FIELDS = SHARED | {
    "state": ((4,), "float32"),
    "chunk": ((HORIZON, 4), "float32"),
    "task": ((TASK_LIMIT,), "int16"),
    "task_length": ((), "int16"),
    "goal": ((4,), "float32"),
}
QUESTION_FIELDS = SHARED | {"ids": ((DIALOGUE_LIMIT,), "int16"), "span": ((2,), "int16")}


def views(memory: memoryview) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The arrays of one slot over its memory."""
    start, groups = 0, []
    for count, fields in ((MOTIONS, MOTION_FIELDS), (QUESTIONS, QUESTION_FIELDS)):
        group = {}
        for name, (shape, dtype) in fields.items():
            array = np.ndarray((count, *shape), dtype=dtype, buffer=memory, offset=start)
            group[name] = array
            start += (array.nbytes + 63) // 64 * 64
        groups.append(group)
    return groups[0], groups[1]


def slot_bytes() -> int:
    """Size of one slot."""
    total = 0
    for count, fields in ((MOTIONS, MOTION_FIELDS), (QUESTIONS, QUESTION_FIELDS)):
        for shape, dtype in fields.values():
            total += (count * int(np.prod(shape)) * np.dtype(dtype).itemsize + 63) // 64 * 64
    return total


def write_motion(group: dict[str, np.ndarray], index: int, sample: Sample, codec: Codec) -> None:
    """Put one motion sample into a slot."""
    ids = codec.task(sample.text)
    _write_common(group, index, sample)
    group["state"][index] = sample.state
    group["chunk"][index] = sample.chunk
    group["task"][index] = 0
    group["task"][index, : len(ids)] = ids
    group["task_length"][index] = len(ids)
    group["goal"][index] = sample.goal


def write_question(group: dict[str, np.ndarray], index: int, sample: Sample, codec: Codec) -> None:
    """Put one question sample into a slot."""
    assert sample.question is not None
    ids, start = codec.dialogue(sample.text, sample.question.answer)
    _write_common(group, index, sample)
    group["ids"][index] = 0
    group["ids"][index, : len(ids)] = ids
    group["span"][index] = start, len(ids)


def _write_common(group: dict[str, np.ndarray], index: int, sample: Sample) -> None:
    group["images"][index] = sample.images
    group["marks"][index] = sample.marks
    group["looks"][index] = sample.looks


def fill(
    rng: np.random.Generator, slot: tuple[dict, dict], codec: Codec, pool: list, snapshots: Snapshots | None
) -> None:
    """Fill one slot; ``pool`` keeps what is left of the last rollout."""
    for index in range(MOTIONS):
        if not pool:
            rollout = roll(rng, WORLDS_A_ROLL, snapshots)
            pool += [(rollout, tick, row) for tick, row in choose_ticks(rng, rollout, EACH)]
        write_motion(slot[0], index, motion_sample(rng, *pool.pop()), codec)
    for index in range(QUESTIONS):
        recorded = pool[-1][0] if pool and index % 3 == 0 else None
        write_question(slot[1], index, question_sample(rng, recorded), codec)


def work(
    key: list[int], names: list[str], free: Any, full: Any, tokenizer: Path, image_tokens: int, share: Path
) -> None:
    """Body of a worker process; ``key`` seeds its generator."""
    import cv2

    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    memories = [SharedMemory(name=name) for name in names]
    slots = [views(memory.buf) for memory in memories]
    codec = Codec(tokenizer, image_tokens)
    rng = np.random.default_rng(key)
    pool: list = []
    snapshots, read_at = None, 0.0
    while True:
        number = free.get()
        if share.exists() and share.stat().st_mtime > read_at:
            read_at = share.stat().st_mtime
            snapshots = Snapshots.load(share)
        fill(rng, slots[number], codec, pool, snapshots)
        full.put(number)


class Ring:
    """The newest samples of one kind as tensors on the device."""

    def __init__(self, fields: dict[str, tuple], capacity: int, device: torch.device) -> None:
        self.capacity, self.filled, self.position = capacity, 0, 0
        self.data = {
            name: torch.empty((capacity, *shape), dtype=getattr(torch, dtype), device=device)
            for name, (shape, dtype) in fields.items()
        }

    def append(self, group: dict[str, np.ndarray]) -> None:
        """Copy one slot's samples to the device."""
        count = len(group["images"])
        for name, array in group.items():
            self.data[name][self.position : self.position + count].copy_(torch.from_numpy(array))
        self.position += count
        self.filled = max(self.filled, self.position)
        if self.position + count > self.capacity:
            self.position = 0

    def draw(self, count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """A random batch."""
        device = self.data["images"].device
        index = torch.randint(self.filled, (count,), generator=generator, device=device)
        return {name: value[index] for name, value in self.data.items()}


class Feed:
    """Workers, slots and rings. ``key`` seeds the data: the run's seed, its piece and the process."""

    def __init__(self, key: list[int], workers: int, tokenizer: Path, image_tokens: int, share: Path) -> None:
        context = mp.get_context("fork")
        self.free, self.full = context.Queue(), context.Queue()
        count = 2 * workers + 2
        self.memories = [SharedMemory(create=True, size=slot_bytes()) for _ in range(count)]
        self.slots = [views(memory.buf) for memory in self.memories]
        names = [memory.name for memory in self.memories]
        for number in range(count):
            self.free.put(number)
        self.processes = [
            context.Process(
                target=work,
                args=([*key, worker], names, self.free, self.full, tokenizer, image_tokens, share),
                daemon=True,
            )
            for worker in range(workers)
        ]
        for process in self.processes:
            process.start()
        self.produced = 0

    def connect(self, device: torch.device, capacity: int) -> None:
        """Start moving samples into rings on ``device``; call after the workers have been forked."""
        self.motions = Ring(MOTION_FIELDS, capacity, device)
        self.questions = Ring(QUESTION_FIELDS, capacity // 3, device)
        self.running = True
        self.thread = threading.Thread(target=self._move, args=(device,), daemon=True)
        self.thread.start()

    def _move(self, device: torch.device) -> None:
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        while self.running:
            number = self.full.get()
            if stream is None:
                self._append(number)
            else:
                with torch.cuda.stream(stream):
                    self._append(number)
                    stream.synchronize()
            self.free.put(number)

    def _append(self, number: int) -> None:
        self.motions.append(self.slots[number][0])
        self.questions.append(self.slots[number][1])
        self.produced += MOTIONS + QUESTIONS

    def wait(self, samples: int) -> None:
        """Block until so many motion samples are there."""
        while self.motions.filled < samples:
            if not all(process.is_alive() for process in self.processes):
                raise SystemExit("A data worker died; its traceback is above.")
            time.sleep(0.05)

    def close(self) -> None:
        """End the workers and free the shared memory."""
        self.running = False
        for process in self.processes:
            process.kill()
        for memory in self.memories:
            memory.unlink()
