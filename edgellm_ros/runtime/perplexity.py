"""How well an engine predicts a text: the measure by which quantised weights are compared with exact ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..backends.registry import open_backend
from ..engine_format import check_answers, open_engine_directory
from ..errors import BackendError, RequestError
from .executor import ModelExecutor
from .tokenizer import Tokenizer

CHUNK = 64  # positions whose logits are held at a time
MOST_LOSS = 500  # of a token, in natural logarithms; a chance of e^-500 is no prediction
WINDOW = 1024  # positions that a token sees at most; it sees at least half of them, where the text has them


@dataclass(frozen=True)
class Perplexity:
    """Over ``tokens`` predicted tokens of a text."""

    tokens: int
    mean_log_loss: float  # natural logarithm

    @property
    def perplexity(self) -> float:
        """As if every token had been drawn from so many equally likely ones."""
        return math.exp(self.mean_log_loss)


def windows(count: int, window: int) -> Iterator[tuple[int, int, int]]:
    """(first position seen, first token predicted, end) for ``count`` tokens: each token but the first, once."""
    predicted, first = 1, 0
    while predicted < count:
        end = min(first + window, count)
        yield first, predicted, end
        predicted, first = end, end - window // 2


def log_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """-ln of the probability of ``targets`` [N] under ``logits`` [N,V]."""
    largest = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - largest).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(targets)), targets] - largest[:, 0]
    losses: np.ndarray = np.log(total) - chosen
    return losses


def score_tokens(
    executor: ModelExecutor,
    token_ids: Sequence[int],
    *,
    window: int = WINDOW,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Teacher-forced through row 0; ``progress`` gets (predicted, to be predicted).

    :raises RequestError: fewer than two tokens, or a window of fewer than two.
    :raises BackendError: the logits are not finite, or as good as that.
    """
    window = min(window, executor.limits.max_kv_cache_capacity)
    if len(token_ids) < 2 or window < 2:
        raise RequestError(f"the text has {len(token_ids)} tokens and the window {window}; want at least 2 of each.")
    ids = np.asarray(token_ids)
    total, count = 0.0, 0
    for first, predicted, end in windows(len(ids), window):
        for start in range(first, end - 1, executor.score_chunk):
            stop = min(start + executor.score_chunk, end - 1)
            logits = executor.score(0, ids[start:stop].tolist(), start - first)
            skip = max(0, predicted - 1 - start)
            if skip < stop - start:
                losses = log_losses(logits[skip:], ids[start + skip + 1 : stop + 1])
                total += float(losses.sum())
                count += len(losses)
                if progress is not None:
                    progress(count, len(ids) - 1)
    mean = total / count
    if not mean <= MOST_LOSS:  # not a number, too
        raise BackendError(
            f"the engine gives the tokens of the text a mean log loss of {mean:.4g}; want a finite one of at most "
            f"{MOST_LOSS}: build the engine directory again."
        )
    return Perplexity(count, mean)


def measure_perplexity(
    engine_dir: Path | str,
    text: str,
    *,
    window: int = WINDOW,
    backend: str = "auto",
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Perplexity of a text, with the tokens around a text that the tokenizer adds.

    ``window`` is the most positions that a token sees, at most what the engine's cache holds.

    :raises EngineDirectoryError: the directory fails a check.
    :raises BackendError: the engine library fails, or cannot run this directory.
    :raises RequestError: the text has fewer than two tokens.
    """
    directory = open_engine_directory(engine_dir)
    check_answers(directory)
    token_ids = Tokenizer.from_directory(directory.path).encode(text, add_special_tokens=True, allow_control=False)
    with closing(open_backend(backend, threads=threads, directory=directory)) as opened:
        executor = ModelExecutor(directory, opened, prefill_chunk=CHUNK, score_chunk=CHUNK)
        with closing(executor):
            return score_tokens(executor, token_ids, window=window, progress=progress)
