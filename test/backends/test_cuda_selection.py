"""The choice of visual tokens by a GPU's kernels against the same choice on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgellm_ros.backends.base import DataType, Tensor, TokenSpan
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.token_selection import select_tokens


def put(backend: CUDABackend, rows: np.ndarray) -> Tensor:
    tensor = backend.allocate(rows.shape, DataType.FLOAT32)
    tensor.write(rows)
    return tensor


def assert_same_choice(backend: CUDABackend, rows: np.ndarray, spans: list[TokenSpan], *pivots: int) -> None:
    chosen = backend.select_tokens(put(backend, rows), spans, *pivots)
    assert chosen.dtype == np.int32
    np.testing.assert_array_equal(chosen, select_tokens(rows, spans, *pivots), str((spans, pivots)))


@pytest.mark.parametrize(("length", "width", "spans"), [
    (40, 8, [(3, 20, 9), (22, 40, 4)]), (300, 321, [(0, 256, 128)]),
    (90, 2048, [(5, 25, 19), (25, 45, 1), (50, 70, 10)]),
])  # fmt: skip
def test_the_same_tokens_of_ordinary_rows_are_chosen(
    cuda: CUDABackend, length: int, width: int, spans: list[tuple[int, int, int]]
) -> None:
    rows = np.random.default_rng(length).normal(0.0, 1.0, (length, width)).astype(np.float32)
    rows[1::7] = rows[1]  # equal rows: the lower ones stay
    for pivots in ((4, 4), (0, 3), (5, 0), (64, 64)):
        assert_same_choice(cuda, rows, [TokenSpan(*span) for span in spans], *pivots)
    assert len(cuda.select_tokens(put(cuda, rows[:30]), [TokenSpan(2, 9, 3)], 1, 1)) == 30 - 7 + 3


def whole_rows(seed: int, length: int, width: int, most: int) -> np.ndarray:
    """Rows of small whole numbers: every sum is exact, so that two ways to choose can differ in their rule alone."""
    return np.random.default_rng(seed).integers(-most, most + 1, (length, width)).astype(np.float32)


def some_spans(generator: np.random.Generator, most: int) -> tuple[list[TokenSpan], int]:
    """Up to four images with text or nothing around them, and the length of their prompt."""
    spans, place = [], 0
    for _ in range(generator.integers(1, 5)):
        start = place + int(generator.choice([0, 0, 1, 3, 40]))
        size = int(generator.integers(1, most))
        place = start + size
        spans.append(TokenSpan(start, place, int(generator.choice([1, size, generator.integers(1, size + 1)]))))
    return spans, place + int(generator.choice([0, 1, 20]))


@pytest.mark.parametrize("most", [1, 2, 40], ids=lambda most: f"up to {most}")
@pytest.mark.parametrize("seed", range(25))
def test_the_same_tokens_are_chosen_whatever_ties_and_wherever_images_lie(
    cuda: CUDABackend, seed: int, most: int
) -> None:
    generator = np.random.default_rng(seed)
    spans, length = some_spans(generator, 3000 if seed % 5 == 0 else 120)
    rows = whole_rows(seed, length, int(generator.choice([1, 3, 32, 257])), most)
    rows[generator.integers(0, length, length // 3)] = rows[generator.integers(length)]
    for pivots in ((0, 1), (1, 0), (4, 4), (64, 0), (0, 64), (64, 64), (7, 2)):
        assert_same_choice(cuda, rows, spans, *pivots)


@pytest.mark.parametrize("spans", [
    [TokenSpan(0, 16384, 1)], [TokenSpan(5, 16389, 8192)], [TokenSpan(5, 16389, 16383)],
    [TokenSpan(256 * image, 256 * (image + 1), 3 * image + 1) for image in range(64)],
], ids=["one row stays", "half stays", "one row goes", "64 images that touch"])  # fmt: skip
@pytest.mark.parametrize("most", [1, 40], ids=["many ties", "few ties"])
def test_the_same_tokens_are_chosen_of_as_many_as_there_may_be(
    cuda: CUDABackend, spans: list[TokenSpan], most: int
) -> None:
    rows = whole_rows(most, spans[-1].stop + spans[0].start, 24, most)
    assert_same_choice(cuda, rows, spans, 64, 64)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("broken", [(2, 7), (1, 2, 3, 4, 5), (0,), tuple(range(40))], ids=str)
def test_the_same_tokens_are_chosen_where_rows_are_not_finite(
    cuda: CUDABackend, value: float, broken: tuple[int, ...]
) -> None:
    rows = whole_rows(1, 40, 5, 2)
    rows[list(broken), 1] = value
    rows[[3, 9]] = 0
    spans = [TokenSpan(1, 17, 9), TokenSpan(20, 38, 4)]
    with np.errstate(all="ignore"):
        for pivots in ((0, 4), (1, 1), (3, 0)):
            assert_same_choice(cuda, rows, spans, *pivots)


def test_with_no_pivot_at_all_no_row_of_an_image_stays_and_without_images_all_do(cuda: CUDABackend) -> None:
    rows = put(cuda, whole_rows(2, 12, 4, 2))
    assert cuda.select_tokens(rows, [TokenSpan(2, 5, 2), TokenSpan(5, 9, 3)], 0, 0).tolist() == [0, 1, 9, 10, 11]
    assert cuda.select_tokens(rows, [TokenSpan(0, 12, 5)], 4, 0).tolist() == []
    assert cuda.select_tokens(rows, [], 4, 4).tolist() == list(range(12))


def test_tokens_are_chosen_with_one_upload_and_one_wait_and_memory_is_kept(
    cuda: CUDABackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = put(cuda, whole_rows(3, 300, 16, 9))
    calls: list[str] = []

    def counted(name: str) -> None:
        original = getattr(cuda.device, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(cuda.device, name, call)

    for name in ("write", "read", "synchronize", "allocate"):
        counted(name)
    for spans in ([TokenSpan(4, 250, 100)], [TokenSpan(4, 50, 10), TokenSpan(60, 290, 90)]):
        cuda.select_tokens(rows, spans, 4, 4)
        calls.clear()
        cuda.select_tokens(rows, spans, 4, 4)
        assert calls == ["write", "read"]


def test_more_pivots_than_a_kernel_has_room_for_are_refused(cuda: CUDABackend) -> None:
    rows = cuda.allocate((9, 4), DataType.FLOAT32)
    with pytest.raises(ValueError, match="65 and 1 pivots were asked for; want 64 at most"):
        cuda.select_tokens(rows, [TokenSpan(2, 5, 2)], 65, 1)
