"""Our own engines of the harness that act and see: chunks of a policy, and its image tower alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from .ours import version
from .policy_shape import HEIGHT, IMAGE_TOKENS, SIDE, TASK, VIEWS, WIDTH

STAGES = {"vision_time": "vision_ms", "prefix_time": "prefix_ms", "denoise_time": "denoise_ms"}


def _versions(backend: str) -> dict[str, str]:
    packages = ("edgellm_ros", "onnxruntime", *(("openvino",) if backend == "openvino" else ()))
    return {package: version(package) for package in packages}


class Policy:
    """One engine directory of a policy, warm."""

    def __init__(self, engine_directory: str, *, threads: int, backend: str = "auto") -> None:
        from edgellm_ros.action.observation import Observation
        from edgellm_ros.action.policy_runtime import PolicyRuntime

        self._backend = backend
        self._runtime = PolicyRuntime(engine_directory, backend=backend, threads=threads)
        self._runtime.warm_up()
        manifest, random = self._runtime.manifest, np.random.default_rng(0)
        pictures = {slot.name: random.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8) for slot in manifest.cameras}
        self._observation = Observation(pictures, np.zeros(manifest.state.width))

    def versions(self) -> dict[str, str]:
        """Versions of this package and of the engine libraries."""
        return _versions(self._backend)

    def chunk(self) -> dict[str, float]:
        """Milliseconds of one chunk from pictures to robot units, and of its stages."""
        start = time.monotonic()
        chunk = self._runtime.compute(self._observation, TASK)
        seconds = time.monotonic() - start
        assert chunk is not None  # nothing cancels it
        return {"chunk_time": 1e3 * seconds, **{name: chunk.timings[stage] for name, stage in STAGES.items()}}

    def close(self) -> None:
        """Free the engines."""
        self._runtime.close()


class Tower:
    """The image tower of an engine directory; ``exact`` is the same in fp32, whose rows are computed once."""

    def __init__(self, engine_directory: str, *, threads: int, exact: str, backend: str = "onnxruntime") -> None:
        self._backend = backend
        self._pixels = np.random.default_rng(0).standard_normal((VIEWS, 3, SIDE, SIDE)).astype(np.float32)
        self._wanted: np.ndarray | None = None
        if exact:
            tower, opened = _open_tower(exact, "onnxruntime", threads)
            self._wanted = tower.encode(self._pixels).embeddings.numpy().copy()
            opened.close()
        self._tower, self._opened = _open_tower(engine_directory, backend, threads)
        self._tower.encode(self._pixels)

    def versions(self) -> dict[str, str]:
        """Versions of this package and of the engine libraries."""
        return _versions(self._backend)

    def encode(self) -> dict[str, float]:
        """Milliseconds for the pictures of one observation, and the least cosine of a row with its one in fp32."""
        start = time.monotonic()
        rows = self._tower.encode(self._pixels).embeddings.numpy()
        found = {"vision_time": 1e3 * (time.monotonic() - start)}
        assert rows.shape[0] == VIEWS * IMAGE_TOKENS
        if self._wanted is not None:
            sizes = np.linalg.norm(rows, axis=1) * np.linalg.norm(self._wanted, axis=1)
            found["cosine"] = float(np.min(np.sum(rows * self._wanted, axis=1) / sizes))
        return found

    def close(self) -> None:
        """Free the engine."""
        self._opened.close()


def _open_tower(engine_directory: str, backend: str, threads: int) -> tuple[Any, Any]:
    from edgellm_ros.backends.registry import open_backend
    from edgellm_ros.vision.tower import Tower as VisionTower
    from edgellm_ros.vision.visual_directory import open_visual_directory

    opened = open_backend(backend, threads=threads)
    return VisionTower(open_visual_directory(Path(engine_directory) / "visual"), opened), opened
