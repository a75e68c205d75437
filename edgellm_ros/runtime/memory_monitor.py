"""How much memory a stretch of work takes at most."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Mapping

_INTERVAL = 0.05  # s


class MemoryMonitor:
    """Looks at a backend's memory every 50 ms from ``start`` to ``stop``, on a thread of its own.

    ``memory`` gives its bytes by kind, ``free`` left out of the sum. What the process held at most is the system's own
    record and needs no looking.
    """

    def __init__(self, memory: Callable[[], Mapping[str, int]]) -> None:
        self._memory = memory
        self._stop = threading.Event()
        self._peak = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._look()
        self._thread = threading.Thread(target=self._run, name="edgellm-memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        found = self._memory()
        used = sum(size for kind, size in found.items() if kind != "free")
        self._peak = max(self._peak, used)

    def stop(self) -> dict[str, float]:
        """Stop looking; peaks in bytes and in MB."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._look()
        processor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "peak_backend_memory_bytes": self._peak,
            "peak_backend_memory_mb": self._peak / 1e6,
            "peak_cpu_memory_bytes": processor,
            "peak_cpu_memory_mb": processor / 1e6,
        }
