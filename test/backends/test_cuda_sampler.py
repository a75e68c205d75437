"""Tokens drawn on the GPU against those drawn by NumPy, from the same logits and parameters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from cuda_device import open_cuda_backend

from edgellm_ros.backends.base import DataType, SamplingRow
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.cuda.sampler import LARGEST_VOCABULARY, MOST_ROWS
from edgellm_ros.backends.host_backend import HostBackend
from edgellm_ros.errors import BackendError

pytestmark = pytest.mark.gpu

DRAWS = 24


@pytest.fixture(scope="module")
def cuda() -> Iterator[CUDABackend]:
    backend = open_cuda_backend()
    yield backend
    backend.close()


def logits_of(shape: str, size: int, random: np.random.Generator) -> np.ndarray:
    """float32 [size] of one kind of distribution."""
    if shape == "normal":
        values = random.normal(0.0, 2.0, size)
    elif shape == "flat":
        values = np.full(size, 3.0)
    elif shape == "nearly flat":
        values = 1.0 + 1e-6 * random.integers(0, 3, size)
    elif shape == "peaked":
        values = random.normal(-20.0, 1.0, size)
        values[random.integers(0, size, 4)] = [9.0, 8.5, 8.5, 7.0]
    elif shape == "long tail":
        values = -np.log1p(np.arange(size))
        random.shuffle(values)
    elif shape == "plateau":  # more that are equal than a list holds, above and below others
        values = random.normal(1.5, 2.0, size)
        values[random.random(size) < 0.6] = 1.5
    else:  # coarse: thousands of equal logits, zeros of both signs among them
        values = np.round(random.normal(0.0, 2.0, size))
        values[::7] = -0.0
    return values.astype(np.float32)


def draw(
    backend: CUDABackend | HostBackend, rows: list[SamplingRow], steps: list[np.ndarray], prompt: list[int]
) -> list[list[int]]:
    """Tokens of all rows for each step's logits [rows, V], one behind the other."""
    sampler = backend.allocate_sampler(len(rows), steps[0].shape[1])
    for row, parameters in enumerate(rows):
        sampler.set_row(row, parameters, prompt, len(prompt) + row)
    ids = backend.allocate((len(rows),), DataType.INT32)
    tensor = backend.allocate(steps[0].shape, DataType.FLOAT32)
    tokens = []
    for logits in steps:
        tensor.write(logits)
        sampler.sample(tensor, range(len(rows)), ids)
        tokens.append(ids.numpy().tolist())
    return tokens


def places(
    backend: CUDABackend | HostBackend, rows: list[SamplingRow], logits: np.ndarray, prompt: list[int], number: int
) -> tuple[list[int], np.ndarray]:
    """Tokens of fresh rows, all at position ``number``, and the logits as penalties and biases left them."""
    sampler = backend.allocate_sampler(len(rows), logits.shape[1])
    for row, parameters in enumerate(rows):
        sampler.set_row(row, parameters, prompt, number)
    ids, tensor = backend.allocate((len(rows),), DataType.INT32), backend.allocate(logits.shape, DataType.FLOAT32)
    tensor.write(logits.copy())
    sampler.sample(tensor, range(len(rows)), ids)
    return ids.numpy().tolist(), tensor.numpy().copy()


@pytest.mark.parametrize("size", [33, 1000, 49152, 151936], ids=str)
@pytest.mark.parametrize("shape", ["normal", "flat", "nearly flat", "peaked", "long tail", "plateau", "coarse"])
def test_every_draw_is_the_one_of_the_cpu(cuda: CUDABackend, shape: str, size: int) -> None:
    random = np.random.default_rng([size, len(shape)])
    rows = []
    for temperature in (0.0, 0.2, 1.0, 3.0):
        for top_k in (0, 1, 40, 5000, size + 5):
            rows.append(
                SamplingRow(
                    temperature=temperature,
                    top_k=top_k,
                    top_p=float(random.choice([1.0, 0.9, 0.5, 1e-6])),
                    min_p=float(
                        random.choice([0.0, 0.07, 0.45])
                    ),  # no share of the long tail, which is one of whole numbers
                    repetition_penalty=float(random.choice([1.0, 1.2, 0.7])),
                    presence_penalty=float(random.choice([0.0, 0.5])),
                    frequency_penalty=float(random.choice([0.0, 0.25, -0.5])),
                    logit_bias={3: 2.5, size - 1: -100.0} if random.random() < 0.3 else {},
                    seed=int(random.integers(0, 1 << 63)) * 2 + 1,
                )
            )
    prompt = random.integers(-5, size + 5, 50).tolist()
    different = 0
    draws = DRAWS if size < 100_000 else DRAWS // 4
    for number in range(draws):
        logits = np.stack([logits_of(shape, size, random) for _ in rows])
        ours, adjusted = places(cuda, rows, logits, prompt, number)
        wanted, reference = places(HostBackend(), rows, logits, prompt, number)
        np.testing.assert_array_equal(adjusted, reference)
        for row in np.flatnonzero(np.array(ours) != np.array(wanted)).tolist():
            different += 1
            order = np.argsort(-reference[row], kind="stable").tolist()
            distance = abs(order.index(ours[row]) - order.index(wanted[row]))
            assert distance == 1 and rows[row].temperature > 0, (rows[row], ours[row], wanted[row], distance)
    # A uniform number may fall within rounding of the boundary of two neighbours: about once in a million draws where
    # few candidates matter, once in thirty where tens of thousands are equally likely.
    assert different <= (0 if shape in ("normal", "peaked") and size < 10_000 else draws * len(rows) // 20)


def test_counts_of_drawn_tokens_act_on_later_draws_as_on_the_cpu(cuda: CUDABackend) -> None:
    random = np.random.default_rng(12)
    rows = [
        SamplingRow(temperature=1.0, seed=row, presence_penalty=row / 4, frequency_penalty=0.3, repetition_penalty=1.1)
        for row in range(8)
    ]
    steps = [np.stack([logits_of("normal", 200, random)] * 8) for _ in range(60)]
    assert draw(cuda, rows, [step.copy() for step in steps], [1, 2]) == draw(HostBackend(), rows, steps, [1, 2])


def test_the_frequencies_of_draws_are_those_of_the_distribution(cuda: CUDABackend) -> None:
    shares = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    logits = np.full((64, 64), -np.float32(50), dtype=np.float32)
    logits[:, :5] = np.log(shares).astype(np.float32)
    counts = np.zeros(64)
    sampler = cuda.allocate_sampler(64, 64)
    ids, tensor = cuda.allocate((64,), DataType.INT32), cuda.allocate((64, 64), DataType.FLOAT32)
    for row in range(64):
        sampler.set_row(row, SamplingRow(temperature=1.0, seed=row * 7919), [], 0)
    tensor.write(logits)
    for _ in range(200):
        sampler.sample(tensor, range(64), ids)
        counts += np.bincount(ids.numpy(), minlength=64)
    drawn = counts[:5] / counts.sum()
    np.testing.assert_allclose(drawn, shares, atol=4 * np.sqrt(0.25 / counts.sum()))
    assert counts[5:].sum() == 0


def test_masks_follow_their_row_and_forbid_what_they_say(cuda: CUDABackend) -> None:
    random = np.random.default_rng(8)
    size = 2049
    answers = []
    steps = [logits_of("normal", size, random)[None].repeat(3, 0) for _ in range(12)]
    masks = random.integers(-(1 << 31), 1 << 31, (12, (size + 31) // 32)).astype(np.int32)
    for backend in (cuda, HostBackend()):
        sampler = backend.allocate_sampler(3, size)
        for row in range(3):
            sampler.set_row(row, SamplingRow(temperature=1.0, top_p=0.8, seed=row, frequency_penalty=1.0), [1], 1)
        ids, tensor = backend.allocate((3,), DataType.INT32), backend.allocate((3, size), DataType.FLOAT32)
        tokens = []
        for step, logits in enumerate(steps):
            sampler.set_mask(1, masks[step] if step % 3 else None)
            if step == 6:
                sampler.move_row(2, 0)
                sampler.set_row(2, SamplingRow(temperature=0.5, seed=99), [2], 1)
                sampler.set_mask(0, masks[0])
            if step == 9:
                sampler.set_mask(2, np.zeros_like(masks[0]))  # nothing is allowed
            tensor.write(logits.copy())
            sampler.sample(tensor, range(3), ids)
            tokens.append(ids.numpy().tolist())
        answers.append(tokens)
    assert answers[0] == answers[1]
    assert answers[0][9][2] == -1


@pytest.mark.parametrize("top_k", [3, 40, 100_000])
def test_top_k_beyond_what_a_mask_allows_keeps_all_of_that(cuda: CUDABackend, top_k: int) -> None:
    random = np.random.default_rng(top_k)
    size, tokens = 151936, []
    allowed = random.choice(size, 5, replace=False)
    mask = np.zeros((size + 31) // 32 * 32, dtype=np.uint8)
    mask[allowed] = 1
    steps = [logits_of("normal", size, random)[None] for _ in range(12)]
    for backend in (cuda, HostBackend()):
        sampler = backend.allocate_sampler(1, size)
        sampler.set_row(0, SamplingRow(temperature=1.0, top_k=top_k, top_p=0.9, seed=top_k), [1], 1)
        sampler.set_mask(0, np.packbits(mask, bitorder="little").view(np.int32))
        ids, tensor = backend.allocate((1,), DataType.INT32), backend.allocate((1, size), DataType.FLOAT32)
        drawn = []
        for logits in steps:
            tensor.write(logits.copy())
            sampler.sample(tensor, [0], ids)
            drawn.append(int(ids.numpy()[0]))
        tokens.append(drawn)
    assert tokens[0] == tokens[1] and set(tokens[0]) <= set(allowed.tolist())


@pytest.mark.parametrize("size", [500, 49152], ids=str)
def test_log_probabilities_are_those_of_the_cpu(cuda: CUDABackend, size: int) -> None:
    random = np.random.default_rng(9)
    logits = np.stack([logits_of(shape, size, random) for shape in ("normal", "coarse", "peaked")])
    rows = [
        SamplingRow(temperature=0.0, num_logprobs=20),
        SamplingRow(temperature=1.0, seed=4, num_logprobs=5, repetition_penalty=1.4),
        SamplingRow(temperature=1.0, seed=4),
    ]
    answers = []
    for backend in (cuda, HostBackend()):
        sampler = backend.allocate_sampler(3, size)
        for row, parameters in enumerate(rows):
            sampler.set_row(row, parameters, [1, 2, 3], 3)
        ids, tensor = backend.allocate((3,), DataType.INT32), backend.allocate((3, size), DataType.FLOAT32)
        tensor.write(logits.copy())
        sampler.sample(tensor, range(3), ids)
        answers.append([sampler.logprobs(index, count) for index, count in ((0, 20), (1, 3))])
    for ours, wanted in zip(*answers, strict=True):
        assert [token for token, _ in ours] == [token for token, _ in wanted]
        np.testing.assert_allclose([log for _, log in ours], [log for _, log in wanted], atol=2e-5)


def test_a_replayed_draw_follows_parameters_that_changed_after_it_was_recorded(cuda: CUDABackend) -> None:
    """Penalties, masks and log probabilities are state, so one recording serves every request."""
    random = np.random.default_rng(10)
    size = 3000
    logits = logits_of("normal", size, random)[None]
    requests = [
        SamplingRow(),
        SamplingRow(temperature=1.0, seed=3, presence_penalty=2.0, num_logprobs=2),
        SamplingRow(temperature=0.8, top_k=9, seed=3, logit_bias={5: 30.0}),
    ]
    sampler = cuda.allocate_sampler(2, size)
    ids, tensor = cuda.allocate((1,), DataType.INT32), cuda.allocate((1, size), DataType.FLOAT32)
    step = cuda.capture("sample", lambda: sampler.sample(tensor, [0], ids))
    for parameters in requests:
        sampler.set_row(0, parameters, [1], 1)
        tokens = []
        for _ in range(4):
            tensor.write(logits)
            step.run()
            tokens.append([ids.numpy().tolist()[0]])
        assert tokens == draw(HostBackend(), [parameters], [logits.copy() for _ in range(4)], [1])
        sampler.set_row(1, SamplingRow(), [1], 1)
        tensor.write(logits)
        sampler.sample(tensor, [1], ids)  # another row between: what was drawn last must not be mixed up
        tensor.write(logits)
        step.run()
        if parameters.num_logprobs:
            assert sampler.logprobs(0, 2)[0][0] == ids.numpy().tolist()[0]
    assert step.recorded


def test_more_than_the_kernels_serve_is_refused(cuda: CUDABackend) -> None:
    with pytest.raises(BackendError, match="at most 64 rows"):
        cuda.allocate_sampler(MOST_ROWS + 1, 100)
    with pytest.raises(BackendError, match="at most 64 rows"):
        cuda.allocate_sampler(1, LARGEST_VOCABULARY + 1)
