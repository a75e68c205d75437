"""What every backend promises: memory, kernels, engines and caches. Sampling is in test_contract_sampler.py."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from backend_driver import BackendDriver
from backend_subjects import Subject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm_ros.backends.base import Backend, CacheLayout, DataType, RopeKind, SamplingRow
from edgellm_ros.engine_format import EMBEDDING_FILE
from edgellm_ros.errors import BackendError, EdgeLLMError, EngineDirectoryError, MisuseError

# The subject outlives every example, and a driver is put into a known state by the rows that a test starts.
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)

PROMPT = [1, 5, 9, 33, 7, 20, 2]
OTHER = [8, 3, 50, 4]


# ---- tensors


@pytest.mark.parametrize("dtype", list(DataType), ids=lambda dtype: dtype.value)
def test_fresh_memory_is_zero_and_what_is_written_is_read(backend: Backend, dtype: DataType) -> None:
    tensor = backend.allocate((3, 5), dtype)
    assert tensor.shape == (3, 5)
    assert tensor.dtype is dtype
    assert not tensor.numpy().any()
    values = (np.arange(15).reshape(3, 5) % 2).astype(dtype.numpy)
    tensor.write(values)
    assert np.array_equal(backend.read_async(tensor).wait(), values)
    assert tensor.numpy().dtype == dtype.numpy


def test_a_written_host_array_may_be_reused_at_once(backend: Backend) -> None:
    tensor = backend.allocate((4,), DataType.INT32)
    values = np.arange(4, dtype=np.int32)
    tensor.write(values)
    values[:] = -1
    assert backend.read_async(tensor).wait().tolist() == [0, 1, 2, 3]


def test_a_readback_belongs_to_its_caller(backend: Backend) -> None:
    tensor = backend.allocate((4,), DataType.INT32)
    readback = backend.read_async(tensor)
    backend.synchronize()
    assert readback.ready()
    tensor.write(np.full(4, 7, dtype=np.int32))
    assert readback.wait().tolist() == [0, 0, 0, 0]


def test_a_prefix_is_the_same_memory_packed_at_its_start(backend: Backend) -> None:
    tensor = backend.allocate((4, 6), DataType.FLOAT32)
    tensor.write(np.arange(24, dtype=np.float32).reshape(4, 6))
    small = tensor.prefix((2, 3))
    assert small.shape == (2, 3)
    assert backend.read_async(small).wait().tolist() == [[0, 1, 2], [3, 4, 5]]
    small.write(np.full((2, 3), -1, dtype=np.float32))
    assert backend.read_async(tensor).wait().reshape(-1)[:7].tolist() == [-1] * 6 + [6]
    assert small.prefix((1,)).numpy().tolist() == [-1]


@pytest.mark.parametrize("shape", [(25,), (5, 5), (-1, 6)], ids=str)
def test_a_prefix_that_does_not_fit_is_refused(backend: Backend, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="prefix"):
        backend.allocate((4, 6), DataType.FLOAT32).prefix(shape)


@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 2), np.float32), np.zeros(3, np.float64), np.zeros(3, np.int32)],
    ids=["shape", "float64", "int32"],
)
def test_a_write_of_another_shape_or_type_is_refused(backend: Backend, values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="want the same"):
        backend.allocate((3,), DataType.FLOAT32).write(values)


def test_memory_in_use_follows_what_is_allocated_and_dropped(backend: Backend) -> None:
    before = backend.memory()
    view = backend.allocate((1024,), DataType.FLOAT32).prefix((3,))
    cache = backend.allocate_kv_cache(CacheLayout(((1, 16),)), 2, 32)
    after = backend.memory()
    assert set(before) == set(after)
    assert after["tensors"] - before["tensors"] == 4096
    assert after["caches"] - before["caches"] == cache.bytes_per_position * 64
    del view, cache
    gc.collect()
    assert {**backend.memory(), "free": 0} == {**before, "free": 0}


# ---- kernels


def test_gathered_rows_are_scaled_and_unknown_ids_give_zeros(subject: Subject, backend: Backend) -> None:
    width, size = subject.config.hidden_size, subject.config.vocab_size
    plain = backend.open_embeddings(subject.directory / EMBEDDING_FILE)
    doubled = backend.open_embeddings(subject.directory / EMBEDDING_FILE, scale=2.0)
    assert plain.shape == (size, width)
    ids = backend.allocate((2, 3), DataType.INT32)
    out = backend.allocate((2, 3, width), DataType.FLOAT32)
    ids.write(np.array([[0, 5, size - 1], [5, 5, 1]], dtype=np.int32))
    backend.gather_embeddings(plain, ids, out)
    rows = backend.read_async(out).wait()
    assert np.array_equal(rows[0, 1], rows[1, 0])
    assert not np.array_equal(rows[0, 1], rows[0, 0])
    backend.gather_embeddings(doubled, ids, out)
    assert np.array_equal(backend.read_async(out).wait(), 2 * rows)
    ids.write(np.array([[-1, 5, size], [1 << 30, 5, -(1 << 31)]], dtype=np.int32))
    backend.gather_embeddings(plain, ids, out)
    outside = backend.read_async(out).wait()
    assert np.array_equal(outside[:, 1], np.stack([rows[0, 1]] * 2))
    assert not outside[:, [0, 2]].any()


def test_embeddings_of_a_missing_file_are_refused_by_name(subject: Subject, backend: Backend) -> None:
    with pytest.raises(EngineDirectoryError, match=r"absent\.safetensors"):
        backend.open_embeddings(subject.directory / "absent.safetensors")


@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_rope_tables_follow_their_definition_with_gaps_in_the_positions(backend: Backend, scale: float) -> None:
    frequency = 10000.0 ** -(np.arange(16) / 16)
    rope = RopeKind("test", tuple(frequency.tolist()), scale)
    positions = np.array([[0, 1, 7, 4095], [131071, 3, 3, 2]], dtype=np.int32)
    where = backend.allocate(positions.shape, DataType.INT32)
    where.write(positions)
    cosine, sine = (backend.allocate((2, 4, 16), DataType.FLOAT32) for _ in range(2))
    backend.rope_tables(rope, where, cosine, sine)
    angles = (positions[..., None].astype(np.float32) * frequency.astype(np.float32)).astype(np.float64)
    assert np.abs(cosine.numpy() - scale * np.cos(angles)).max() < 2e-6
    assert np.abs(sine.numpy() - scale * np.sin(angles)).max() < 2e-6


# ---- engines


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


# ---- caches


def test_a_cache_says_what_it_holds(subject: Subject, driver: BackendDriver) -> None:
    assert driver.cache.rows == 4
    assert driver.cache.capacity == subject.config.limits.max_kv_cache_capacity
    assert driver.cache.dtype is DataType.FLOAT32
    assert driver.cache.bytes_per_position > 0


def test_a_copied_row_goes_on_as_its_source(driver: BackendDriver) -> None:
    wanted = driver.answer(PROMPT, 10)
    driver.answer(OTHER, 10, row=0)
    tokens = [driver.start(3, PROMPT)]
    tokens += driver.advance(tokens, 3, first_row=3)[0]
    driver.cache.copy_row(3, 0, len(driver.history[3]))
    driver.sampler.move_row(3, 0)
    driver.history[0] = list(driver.history.pop(3))
    driver.answer(OTHER, 5, row=3)  # what the source's row does next is its own affair
    assert [*tokens, *driver.advance(tokens[-1:], 6)[0]] == wanted


def test_a_row_copied_too_short_changes_the_answer(driver: BackendDriver) -> None:
    """The proof that the test above looks at the cache."""
    wanted = driver.answer(PROMPT, 10)
    driver.answer(OTHER, 10, row=0)
    first = driver.start(3, PROMPT)
    driver.cache.copy_row(3, 0, len(PROMPT) - 3)
    driver.sampler.move_row(3, 0)
    driver.history[0] = list(driver.history.pop(3))
    assert [first, *driver.advance([first], 9)[0]] != wanted


def test_exported_blocks_rebuild_a_prefix_in_another_row(driver: BackendDriver) -> None:
    prompt = [*PROMPT, *OTHER, *PROMPT]
    wanted = driver.answer(prompt, 8)
    driver.start(1, prompt)
    blocks = [(start, driver.cache.export_block(1, start, 4)) for start in (0, 4, 8, 12)]
    driver.answer(OTHER, 12, row=1)  # an exported block is a copy
    driver.answer(OTHER, 12, row=2)
    for start, block in reversed(blocks):
        driver.cache.import_block(2, start, block)
    driver.history[2] = prompt[:16]
    driver.sampler.set_row(2, SamplingRow(), prompt, len(prompt))
    first = driver.sample(driver.run([prompt[16:]], 2), [2])[0]
    assert [first, *driver.advance([first], 7, 2)[0]] == wanted


def test_a_row_is_copied_out_as_attention_reads_it(subject: Subject, driver: BackendDriver) -> None:
    layers, room = subject.config.kv_layers, len(PROMPT) + 5
    shapes = [shape for heads, size in layers for shape in ((1, heads, size, room), (1, heads, room, size))]

    def copied(row: int, length: int) -> list[np.ndarray]:
        tensors = [driver.backend.allocate(shape, DataType.FLOAT32) for shape in shapes]
        for tensor in tensors:
            tensor.write(np.full(tensor.shape, 3.0, np.float32))
        driver.cache.copy_out(row, length, tensors)
        values = [tensor.numpy()[0] for tensor in tensors]
        return [array if index % 2 else array.swapaxes(1, 2) for index, array in enumerate(values)]

    if driver.backend.name == "fake":
        with pytest.raises(MisuseError, match="has no keys and values"):
            copied(0, 1)
        return
    driver.start(0, PROMPT)
    driver.start(2, [*PROMPT[:4], *OTHER])
    first, second = copied(0, len(PROMPT)), copied(2, 4)
    for ours, other in zip(first, second, strict=True):  # [heads, room, size]
        assert np.allclose(ours[:, :4], other[:, :4], atol=1e-5) and not ours[:, len(PROMPT) :].any()
        assert all(np.abs(ours[:, at]).max() > 0 for at in range(len(PROMPT))) and not other[:, 4:].any()
        assert len({ours[:, at].tobytes() for at in range(len(PROMPT))}) > 1
    assert driver.advance([1], 1)[0] and driver.history[0]  # the cache is as it was


@pytest.mark.parametrize(
    "call",
    [
        lambda cache: cache.copy_row(0, 4, 1),
        lambda cache: cache.copy_row(-1, 0, 1),
        lambda cache: cache.copy_row(0, 1, cache.capacity + 1),
        lambda cache: cache.export_block(0, cache.capacity, 1),
        lambda cache: cache.import_block(0, cache.capacity - 1, cache.export_block(0, 0, 2)),
        lambda cache: cache.copy_out(0, cache.capacity + 1, []),
        lambda cache: cache.copy_out(-1, 1, []),
        lambda cache: cache.copy_out(cache.rows, 1, []),
    ],
    ids=["row", "negative row", "length", "export", "import", "copy out", "copy of no row", "copy of a row too far"],
)
def test_positions_outside_a_cache_are_refused(driver: BackendDriver, call: object) -> None:
    with pytest.raises(MisuseError, match=r"want some inside"):
        call(driver.cache)  # type: ignore[operator]


def test_a_cache_of_another_model_is_refused(driver: BackendDriver) -> None:
    if driver.backend.name == "fake":
        pytest.skip("one fake cache fits every script")
    strange = driver.backend.allocate_kv_cache(CacheLayout(((1, 8),)), 1, 16)
    with pytest.raises(MisuseError, match="cache"):
        driver.engine.bind_cache(strange)


# ---- recorded steps and ends


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


def test_a_directory_without_a_graph_is_refused_by_name(backend: Backend, tmp_path: object) -> None:
    with pytest.raises(EdgeLLMError, match=str(tmp_path)):
        backend.open_engine(tmp_path)  # type: ignore[arg-type]


def test_closing_twice_is_harmless_and_a_closed_backend_says_so(subject: Subject) -> None:
    driver = subject.open_driver()
    driver.answer(PROMPT, 2)
    driver.engine.close()
    driver.engine.close()
    with pytest.raises(BackendError, match="closed"):
        driver.engine.run(driver.shapes(1, 1))
    driver.backend.close()
    driver.backend.close()
    with pytest.raises(MisuseError, match="closed"):
        driver.backend.allocate((1,), DataType.INT32)
    with pytest.raises(MisuseError, match="closed"):
        driver.backend.open_engine(subject.directory)


def test_two_engines_of_one_backend_do_not_share_state(subject: Subject, backend: Backend) -> None:
    first = BackendDriver(backend, subject.directory, subject.config)
    wanted = first.answer(PROMPT, 6)
    second = BackendDriver(backend, subject.directory, subject.config)
    token = first.start(0, PROMPT)
    second.answer(OTHER, 6)
    second.engine.close()
    assert [token, *first.advance([token], 5)[0]] == wanted
