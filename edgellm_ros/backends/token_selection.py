"""Which rows of a prompt's embeddings to keep: those least like a few pivots (DART, on input embeddings).

Rows that resemble a pivot count as duplicates of it. It reads embeddings only, no attention weights. This is the rule,
and how a CPU carries it out; the kernels of ``cuda/pruning.cu`` choose the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import TokenSpan

MOST_PIVOTS = 64  # of a span's own, and of the text's: what a kernel has room for
SMALLEST_NORM = 1e-8
ROWS_AT_ONCE = 256  # of a product with a pivot; bounds the copy in 32-bit numbers
_UNLIKE_ANYTHING = np.float32(2)  # beyond every cosine: a row that is not finite is no better than any other
_TAKEN = np.float32(np.inf)


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
    keep = np.ones(len(embeddings), bool)
    for span in spans:
        keep[span.start : span.stop] = False
    text = np.flatnonzero(keep)
    shared = text[_largest(magnitudes[text], text_pivots)]
    for span in spans:
        own = _largest(magnitudes[span.start : span.stop], min(image_pivots, span.quota))
        values = _cosines(embeddings, norms, span, np.concatenate([span.start + own, shared]))
        keep[span.start + _choose(values, own, span.quota)] = True
    return np.flatnonzero(keep).astype(np.int32)


def _cosines(embeddings: np.ndarray, norms: np.ndarray, span: TokenSpan, pivots: np.ndarray) -> np.ndarray:
    """Cosines of the rows of a span to its pivots, float32 [pivots, rows]."""
    values = np.empty((len(pivots), span.stop - span.start), np.float32)
    # plain sums of products: a matrix product adds equal rows in different orders and would part equal values
    for row, pivot in zip(values, pivots, strict=True):
        for start in range(span.start, span.stop, ROWS_AT_ONCE):
            part = embeddings[start : min(start + ROWS_AT_ONCE, span.stop)]
            place = start - span.start
            row[place : place + len(part)] = np.einsum("nd,d->n", part, embeddings[pivot])
    values /= np.maximum(norms[span.start : span.stop] * norms[pivots, None], np.float32(SMALLEST_NORM))
    return values


def _choose(cosines: np.ndarray, own: np.ndarray, quota: int) -> np.ndarray:
    """Places of ``quota`` rows of a span in any order: its ``own`` pivots, and the shares of all pivots."""
    values = np.where(cosines <= _UNLIKE_ANYTHING, cosines, _UNLIKE_ANYTHING)
    values[:, own] = _TAKEN
    taken, left = [own], quota - len(own)
    for index, row in enumerate(values):
        count = -(-left // (len(values) - index))
        if not count:
            break
        taken.append(_smallest(row, count))
        values[index + 1 :, taken[-1]] = _TAKEN
        left -= count
    return np.concatenate(taken)


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
