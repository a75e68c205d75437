"""What every backend's engines promise: names, shapes, prompts in chunks and rows, and recorded steps."""

from __future__ import annotations

import numpy as np
import pytest
from backend_driver import OTHER, PROMPT, BackendDriver
from backend_subjects import Subject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm_ros.backends.base import Backend, SamplingRow
from edgellm_ros.errors import BackendError

# The subject outlives every example, and a driver is put into a known state by the rows that a test starts.
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)


def test_an_engine_names_its_tensors_and_hides_its_caches(subject: Subject, driver: BackendDriver) -> None:
    assert {"inputs_embeds", "past_length", "query_length", "last_token_index"} <= set(driver.engine.inputs)
    assert driver.engine.outputs["logits"].shape == (-1, -1, subject.config.vocab_size)
    assert not [name for name in [*driver.engine.inputs, *driver.engine.outputs] if "key" in name or "value" in name]
    assert driver.engine.capabilities.ragged_chunks


def test_an_unknown_name_or_another_element_type_is_refused(driver: BackendDriver) -> None:
    with pytest.raises(ValueError, match="no_such_input"):
        driver.engine.bind("no_such_input", driver.ids)
    with pytest.raises(ValueError, match="float32"):
        driver.engine.bind("inputs_embeds", driver.ids)


def test_the_same_history_gives_the_same_answer_twice(driver: BackendDriver) -> None:
    assert driver.answer(PROMPT, 12) == driver.answer(PROMPT, 12)
    assert driver.answer(PROMPT, 12) != driver.answer(OTHER, 12)


@SHARED
@given(piece=st.integers(1, 8), row=st.integers(0, 3))
def test_a_prompt_in_chunks_in_any_row_gives_what_it_gives_at_once(
    exact_driver: BackendDriver, piece: int, row: int
) -> None:
    driver = exact_driver
    wanted = driver.answer(PROMPT, 8)
    first = driver.start(row, PROMPT, piece=piece)
    assert [first, *driver.advance([first], 7, row)[0]] == wanted


@SHARED
@given(
    prompts=st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=12), min_size=2, max_size=4),
    split=st.integers(1, 11),
)
def test_ragged_rows_in_one_call_answer_as_each_alone(
    exact_driver: BackendDriver, prompts: list[list[int]], split: int
) -> None:
    driver = exact_driver
    wanted = [driver.answer(prompt, 4) for prompt in prompts]
    rows = list(range(len(prompts)))
    for row, prompt in zip(rows, prompts, strict=True):
        driver.history[row] = []
        driver.sampler.set_row(row, SamplingRow(), prompt, len(prompt))
    heads = [prompt[: min(split, len(prompt) - 1)] for prompt in prompts]
    if all(heads):
        driver.run(heads)
    logits = driver.run([prompt[len(driver.history[row]) :] for row, prompt in zip(rows, prompts, strict=True)])
    first = driver.sample(logits, rows)
    assert [[token, *rest] for token, rest in zip(first, driver.advance(first, 3), strict=True)] == wanted


def test_a_prefill_beside_a_decoding_row_disturbs_neither(driver: BackendDriver) -> None:
    wanted, late = driver.answer(PROMPT, 6), driver.answer(OTHER, 3)
    tokens = [driver.start(0, PROMPT)]
    tokens += driver.advance(tokens[-1:], 2)[0]
    driver.history[1] = []
    driver.sampler.set_row(1, SamplingRow(), OTHER, len(OTHER))
    picked = driver.sample(driver.run([tokens[-1:], OTHER]), [0, 1])
    rest = driver.advance(picked, 2)
    assert [*tokens, picked[0], *rest[0]] == wanted
    assert [picked[1], *rest[1]] == late


def test_a_run_that_does_not_fit_is_refused_and_harms_nothing(driver: BackendDriver) -> None:
    wanted = driver.answer(PROMPT, 6)
    first = driver.start(0, PROMPT)
    shapes = driver.shapes(1, 1)
    for broken in (
        {**shapes, "inputs_embeds": (1, 1, shapes["inputs_embeds"][2] + 1)},
        {**shapes, "inputs_embeds": (5, 64, shapes["inputs_embeds"][2])},
        {name: shape for name, shape in shapes.items() if name != "past_length"},
        {**shapes, "no_such_input": (1,)},
    ):
        with pytest.raises(BackendError):
            driver.engine.run(broken)
    with pytest.raises(BackendError, match="rows"):
        driver.engine.run(shapes, first_row=4)
    assert [first, *driver.advance([first], 5)[0]] == wanted


def test_a_recorded_step_equals_the_same_step_run_eagerly(driver: BackendDriver) -> None:
    wanted = driver.answer(PROMPT, 6)
    tokens = [driver.start(0, PROMPT)]
    shapes = driver.shapes(1, 1)
    view = {name: driver.tensors[name].prefix(shape) for name, shape in shapes.items()}
    ids, positions = driver.picked.prefix((1, 1)), driver.positions.prefix((1, 1))
    picked, logits = driver.picked.prefix((1,)), driver.tensors["logits"].prefix((1, driver.config.vocab_size))

    def step() -> None:
        driver.backend.gather_embeddings(driver.embeddings, ids, view["inputs_embeds"])
        for name, rope in driver.ropes.items():
            driver.backend.rope_tables(rope, positions, view[f"rope_cos_{name}"], view[f"rope_sin_{name}"])
        driver.engine.run(shapes)
        driver.sampler.sample(logits, [0], picked)

    recorded = driver.backend.capture(("decode", 1), step)
    view["query_length"].write(np.ones(1, dtype=np.int32))
    view["last_token_index"].write(np.zeros((1, 1), dtype=np.int32))
    for past in range(len(PROMPT), len(PROMPT) + 5):
        view["past_length"].write(np.array([past], dtype=np.int32))
        positions.write(np.array([[past]], dtype=np.int32))
        recorded.run()
        tokens.append(int(driver.backend.read_async(picked).wait()[0]))
    assert tokens == wanted


def test_two_engines_of_one_backend_do_not_share_state(subject: Subject, backend: Backend) -> None:
    first = BackendDriver(backend, subject.directory, subject.config)
    wanted = first.answer(PROMPT, 6)
    second = BackendDriver(backend, subject.directory, subject.config)
    token = first.start(0, PROMPT)
    second.answer(OTHER, 6)
    second.engine.close()
    assert [token, *first.advance([token], 5)[0]] == wanted
