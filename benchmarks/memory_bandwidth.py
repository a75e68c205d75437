"""How fast this machine reads memory: the floor under a decode step that reads every weight once.

``python -m benchmarks.memory_bandwidth [--megabytes 540] [--threads N]`` prints the figure alone.
"""

from __future__ import annotations

import argparse
import os
import threading
import time

import numpy as np


class MemoryBandwidth:
    """A block of ``megabytes`` that ``threads`` threads read, each its own share, as a thread pool reads weights."""

    def __init__(self, *, threads: int, megabytes: int = 540) -> None:
        count = megabytes * 1_000_000 // 4 // threads
        self._shares = [np.full(count, index + 1, dtype=np.int32) for index in range(threads)]

    def versions(self) -> dict[str, str]:
        """NumPy does the reading."""
        return {"numpy": np.__version__}

    def decode(self, prompt_tokens: int = 0, tokens: int = 16) -> dict[str, float]:
        """Read the block ``tokens`` times; gigabytes per second of the median pass. ``prompt_tokens`` is not used."""
        passes = []
        for _ in range(tokens):
            workers = [threading.Thread(target=share.max) for share in self._shares]
            start = time.monotonic()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            passes.append(time.monotonic() - start)
        total = sum(share.nbytes for share in self._shares)
        return {"weight_traffic": total / float(np.median(passes)) / 1e9}

    def close(self) -> None:
        """Free the block."""
        self._shares.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=540)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    engine = MemoryBandwidth(threads=arguments.threads, megabytes=arguments.megabytes)
    print(f"{engine.decode()['weight_traffic']:.1f} GB/s, {arguments.threads} threads, {arguments.megabytes} MB")


if __name__ == "__main__":
    main()
