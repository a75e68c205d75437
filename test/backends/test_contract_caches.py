"""What every backend's caches promise: rows and blocks move whole, and nothing outside is touched."""

from __future__ import annotations

import numpy as np
import pytest
from backend_driver import OTHER, PROMPT, BackendDriver
from backend_subjects import Subject

from edgellm_ros.backends.base import CacheLayout, DataType, SamplingRow
from edgellm_ros.errors import MisuseError


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
