"""Which rows of a prompt's embeddings to keep: those least like a few pivots (DART, on input embeddings).

Rows that resemble a pivot count as duplicates of it. It reads embeddings only, no attention weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import TokenSpan

SMALLEST_NORM = 1e-8
ROWS_AT_ONCE = 256  # of a product with a pivot; bounds the copy in 32-bit numbers


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the ``count`` largest values, largest first, the lower place where they are equal."""
    return np.argsort(-values, kind="stable")[:count]


def select_tokens(
    embeddings: np.ndarray, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int
) -> np.ndarray:
    """Rows to keep, int32, ascending: every row outside the spans and ``quota`` rows of each span.

    ``embeddings`` [L,D], any float type, bfloat16 as uint16. ``spans`` in ascending order, not touching each other's
    rows. The rows with the largest sum of magnitudes are pivots: ``text_pivots`` outside the spans, for all spans
    alike, and in each span ``image_pivots``, which stay. Each pivot in turn, the span's own first, takes its share of
    the rest: the rows with the smallest cosine to it. Equal values go to the lower row.
    """
    if embeddings.dtype == np.uint16:
        values = (embeddings.astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.asarray(embeddings, np.float32)
    length = len(values)
    magnitudes = np.abs(values).sum(axis=1)
    norms = np.sqrt(np.einsum("ld,ld->l", values, values))
    is_text = np.ones(length, bool)
    for span in spans:
        is_text[span.start : span.stop] = False
    text = np.flatnonzero(is_text)
    shared = text[_largest(magnitudes[text], text_pivots)]
    keep = is_text
    for span in spans:
        own = span.start + _largest(magnitudes[span.start : span.stop], min(image_pivots, span.quota))
        keep[own] = True
        left = span.quota - len(own)
        pivots = [*own, *shared]
        pool = np.setdiff1d(np.arange(span.start, span.stop), own)
        for index, pivot in enumerate(pivots):
            if not left:
                break
            count = -(-left // (len(pivots) - index))
            chosen = np.argsort(_cosines(values, norms, pool, int(pivot)), kind="stable")[:count]
            keep[pool[chosen]] = True
            pool = np.delete(pool, chosen)
            left -= count
    return np.flatnonzero(keep).astype(np.int32)


def _cosines(values: np.ndarray, norms: np.ndarray, rows: np.ndarray, pivot: int) -> np.ndarray:
    # a plain sum of products: a matrix product adds equal rows in different orders and would part equal values
    products = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        products[start : start + ROWS_AT_ONCE] = np.einsum("nd,d->n", values[part], values[pivot])
    cosines: np.ndarray = products / np.maximum(norms[rows] * norms[pivot], np.float32(SMALLEST_NORM))
    return cosines
