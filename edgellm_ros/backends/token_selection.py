"""Which rows of a prompt's embeddings to keep: those least like a few pivots (DART, on input embeddings).

Rows that resemble a pivot count as duplicates of it. It reads embeddings only, no attention weights. A device brings
the two measures, sums of magnitudes and cosines; the choice by them is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .base import TokenSpan

SMALLEST_NORM = 1e-8
ROWS_AT_ONCE = 256  # of a product with a pivot; bounds the copy in 32-bit numbers
_UNLIKE_ANYTHING = np.float32(2)  # beyond every cosine: a row that is not finite is no better than any other
_TAKEN = np.float32(np.inf)

# cosines of the rows of each span to its pivots, float32 [pivots, rows], for spans with their pivots' rows
Cosines = Callable[[Sequence[tuple[TokenSpan, np.ndarray]]], Sequence[np.ndarray]]


def select_tokens(
    embeddings: np.ndarray, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int
) -> np.ndarray:
    """Rows to keep, int32, ascending: every row outside the spans and ``quota`` rows of each span.

    ``embeddings`` float32 [L,D]. ``spans`` in ascending order, not touching each other's rows. The rows with the
    largest sum of magnitudes are pivots: ``text_pivots`` outside the spans, for all spans alike, and in each span
    ``image_pivots``, which stay. Each pivot in turn, the span's own first, takes its share of the rest: the rows with
    the smallest cosine to it. Equal values go to the lower row.
    """
    magnitudes = np.abs(embeddings).sum(axis=1)
    norms = np.sqrt(np.einsum("ld,ld->l", embeddings, embeddings))

    def cosines(wanted: Sequence[tuple[TokenSpan, np.ndarray]]) -> list[np.ndarray]:
        found = []
        for span, pivots in wanted:
            values = np.empty((len(pivots), span.stop - span.start), np.float32)
            # plain sums of products: a matrix product adds equal rows in different orders and would part equal values
            for row, pivot in zip(values, pivots, strict=True):
                for start in range(span.start, span.stop, ROWS_AT_ONCE):
                    part = embeddings[start : min(start + ROWS_AT_ONCE, span.stop)]
                    place = start - span.start
                    row[place : place + len(part)] = np.einsum("nd,d->n", part, embeddings[pivot])
            values /= np.maximum(norms[span.start : span.stop] * norms[pivots, None], np.float32(SMALLEST_NORM))
            found.append(values)
        return found

    return choose_rows(magnitudes, spans, text_pivots, image_pivots, cosines)


def choose_rows(
    magnitudes: np.ndarray, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int, cosines: Cosines
) -> np.ndarray:
    """``select_tokens`` by ``magnitudes`` float32 [L] and ``cosines``, which is asked once."""
    keep = np.ones(len(magnitudes), bool)
    for span in spans:
        keep[span.start : span.stop] = False
    text = np.flatnonzero(keep)
    shared = text[_largest(magnitudes[text], text_pivots)]
    own = [span.start + _largest(magnitudes[span.start : span.stop], min(image_pivots, span.quota)) for span in spans]
    pivots = [np.concatenate([some, shared]).astype(np.int32) for some in own]
    for span, some, found in zip(spans, own, cosines(list(zip(spans, pivots, strict=True))), strict=True):
        keep[some] = True
        left = span.quota - len(some)
        values = np.where(found <= _UNLIKE_ANYTHING, found, _UNLIKE_ANYTHING)
        values[:, some - span.start] = _TAKEN
        for index, row in enumerate(values):
            count = -(-left // (len(values) - index))
            if not count:
                break
            chosen = _smallest(row, count)
            keep[span.start + chosen] = True
            values[index + 1 :, chosen] = _TAKEN
            left -= count
    return np.flatnonzero(keep).astype(np.int32)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the ``count`` largest values, largest first, the lower place where they are equal."""
    ranks = np.where(np.isnan(values), np.inf, -values)
    chosen = np.sort(_smallest(ranks, count))
    return chosen[np.argsort(ranks[chosen], kind="stable")]


def _smallest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the ``count`` smallest values in any order, the lower places where they are equal."""
    if not 0 < count < len(values):
        return np.arange(min(count, len(values)))
    bound = np.partition(values, count - 1)[count - 1]
    chosen = np.flatnonzero(values <= bound)
    if len(chosen) == count:
        return chosen
    below = values[chosen] < bound
    return np.concatenate([chosen[below], chosen[~below][: count - np.count_nonzero(below)]])
