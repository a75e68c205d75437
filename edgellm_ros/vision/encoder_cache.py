"""Rows of images that were encoded before, by the digest of what was seen: a still scene costs its tower once."""

from __future__ import annotations

import threading
from collections import OrderedDict

from .media import EncodedMedia

DEFAULT_BUDGET_BYTES = 256 * 2**20


class EncoderCache:
    """Least recently used items leave first; an item beyond the whole budget is not kept.

    ``get`` and ``put`` belong to the thread that drives the runtime, ``__contains__`` and the counters to any; the
    lock covers the table.
    """

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.nbytes = 0
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        self._kept: OrderedDict[bytes, EncodedMedia] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, digest: bytes) -> bool:
        with self._lock:
            return digest in self._kept

    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    def get(self, digest: bytes) -> EncodedMedia | None:
        """What is known of an item, which is then the youngest."""
        with self._lock:
            found = self._kept.get(digest)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._kept.move_to_end(digest)
            return found

    def put(self, digest: bytes, encoded: EncodedMedia) -> None:
        """Keep an item, and let go of others until the budget holds."""
        if encoded.nbytes > self.budget_bytes:
            return
        with self._lock:
            before = self._kept.pop(digest, None)
            self._kept[digest] = encoded
            self.nbytes += encoded.nbytes - (before.nbytes if before else 0)
            while self.nbytes > self.budget_bytes:
                _, oldest = self._kept.popitem(last=False)
                self.nbytes -= oldest.nbytes
                self.evicted += 1

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept.clear()
            self.nbytes = 0
