"""Our own engines of the harness that see images: a tower, its cache, and the choice of tokens beside a prefill."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .ours import version
from .prompts import prompt_ids


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """uint8 [height,width,3]: a coarse pattern of colours, stretched."""
    coarse = np.random.default_rng(seed).integers(0, 256, (1 + height // 16, 1 + width // 16, 3), dtype=np.uint8)
    return np.ascontiguousarray(np.repeat(np.repeat(coarse, 16, axis=0), 16, axis=1)[:height, :width])


def cosines(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Of each row with its counterpart."""
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(axis=1) / sizes)


class VisionTower:
    """The image tower of an engine directory, alone, on ONNX Runtime.

    :param reference: another engine directory of the same weights, whose rows ours are compared with.
    """

    def __init__(self, engine_directory: str, *, threads: int, size: Sequence[int], reference: str = "") -> None:
        from edgellm_ros.backends.cpu import CPUBackend
        from edgellm_ros.vision.runner import VisionRunner

        self._size, self._seed = (int(size[0]), int(size[1])), 0
        self._open = lambda directory: VisionRunner.open(Path(directory) / "visual", CPUBackend(threads), cache_bytes=0)
        self._runner = self._open(engine_directory)
        self._cosines = self._compare(reference) if reference else np.ones(1)

    def _compare(self, reference: str) -> np.ndarray:
        other = self._open(reference)
        frame = picture(1000, *self._size)
        rows = [runner.encode(runner.place(frame)).embeddings.numpy().copy() for runner in (self._runner, other)]
        other.close()
        return cosines(*rows)

    def versions(self) -> dict[str, str]:
        """Versions of this package and of the engine library."""
        return {"edgellm_ros": version("edgellm_ros"), "onnxruntime": version("onnxruntime")}

    def tower(self) -> dict[str, float]:
        """Milliseconds for one image, without its preparation; cosines to the reference."""
        self._seed += 1
        item = self._runner.place(picture(self._seed, *self._size))
        start = time.monotonic()
        self._runner.encode(item)
        return {
            "tower_time": 1e3 * (time.monotonic() - start),
            "smallest_cosine": float(self._cosines.min()),
            "mean_cosine": float(self._cosines.mean()),
        }

    def close(self) -> None:
        """Free the tower."""
        self._runner.close()


class EncoderCache(VisionTower):
    """The same with a cache of rows."""

    def __init__(self, engine_directory: str, *, threads: int, size: Sequence[int]) -> None:
        from edgellm_ros.backends.cpu import CPUBackend
        from edgellm_ros.vision.runner import VisionRunner

        super().__init__(engine_directory, threads=threads, size=size)
        self._runner.close()
        self._runner = VisionRunner.open(Path(engine_directory) / "visual", CPUBackend(threads))

    def hit(self) -> dict[str, float]:
        """An image that was never seen, and then the same again: all that vision costs, preparation included."""
        self._seed += 1
        frame, seconds = picture(self._seed, *self._size), []
        for _ in ("cold", "hit"):
            start = time.monotonic()
            self._runner.encode(self._runner.place(frame))
            seconds.append(time.monotonic() - start)
        cold, known = seconds
        return {"hit_share": 100 * known / cold, "cold_time": 1e3 * cold, "hit_time": 1e3 * known}


class Pruner:
    """The choice of image tokens beside a prefill, whose time is found from engines with few layers.

    :param engine_directories: the same model with fewer and with more layers.
    :param layers: how many those have; the last number is that of the whole model.
    """

    def __init__(self, engine_directories: Sequence[str], *, threads: int, layers: Sequence[int]) -> None:
        from edgellm_ros import LLMInferenceRuntime

        self._layers = [int(count) for count in layers]
        self._runtimes: list[Any] = [
            LLMInferenceRuntime(path, backend="onnxruntime", threads=threads) for path in engine_directories
        ]
        self._variant = 0

    def versions(self) -> dict[str, str]:
        """Versions of this package and of the engine library."""
        return {"edgellm_ros": version("edgellm_ros"), "onnxruntime": version("onnxruntime")}

    def prune(self, tokens: int, text: int) -> dict[str, float]:
        """One prompt of ``tokens`` image tokens and ``text`` others: the choice, and the prefill of the whole."""
        self._variant += 1
        few, more = (self._prefill(runtime, tokens + text) for runtime in self._runtimes)
        layer = (more - few) / (self._layers[1] - self._layers[0])
        whole = few + layer * (self._layers[2] - self._layers[0])
        chosen = self._choose(tokens, text)
        return {
            "pruner_share": 100 * chosen / whole,
            "pruner_time": 1e3 * chosen,
            "prefill_time": whole,
            "layer_time": 1e3 * layer,
        }

    def _prefill(self, runtime: Any, length: int) -> float:
        from edgellm_ros import LLMGenerationResponse

        from .ours import _greedy

        response = LLMGenerationResponse()
        if not runtime.handle_request(_greedy(prompt_ids(length, self._variant), 1), response):
            raise RuntimeError(f"the runtime refused the request: {runtime.last_refusal}")
        times = response.times[0]
        return float(times.first_token - times.prefill_start)

    def _choose(self, tokens: int, text: int) -> float:
        from edgellm_ros.backends.base import DataType
        from edgellm_ros.vision.pruner import VisualPrunerConfig, prune_prompt

        backend, width = self._runtimes[0].rank.backend, self._runtimes[0].config.hidden_size
        rows = np.random.default_rng(self._variant).standard_normal((tokens + text, width), dtype=np.float32)
        embeddings = backend.allocate(rows.shape, DataType.FLOAT32)
        embeddings.write(rows)
        start = time.monotonic()
        prune_prompt(
            backend, embeddings, [(text // 2, text // 2 + tokens)], VisualPrunerConfig(True, reduction_ratio=0.5)
        )
        return time.monotonic() - start

    def close(self) -> None:
        """Free the engines."""
        for runtime in self._runtimes:
            runtime.close()
