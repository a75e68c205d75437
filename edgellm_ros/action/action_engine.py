"""The action engine of a policy and its tensors: noise and a moment in, the velocity there out.

What a policy has seen comes from elsewhere: engines that read a prefix bind what they give to this engine's inputs,
without a copy. Everything is allocated once.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from ..backends.base import Backend, DataType, Engine, RopeKind, Tensor
from ..errors import PolicyError
from .policy_manifest import ACTION_DIRECTORY, PolicyManifest, StateInput, SuffixMask
from .recordings import Key, Recordings

PREFIX_GRAPH_FILE, ACTION_GRAPH_FILE, TIME_GRAPH_FILE = "prefix.onnx", "action.onnx", "time.onnx"


class ActionEngine:
    """Owned by one thread. :raises PolicyError: a graph is not what the manifest says."""

    def __init__(self, directory: Path, manifest: PolicyManifest, backend: Backend) -> None:
        self._backend, self._manifest = backend, manifest
        self.recordings = Recordings(backend)
        self._directory = directory / ACTION_DIRECTORY
        with ExitStack() as undo:
            self._action = undo.enter_context(closing(backend.open_engine(self._directory / ACTION_GRAPH_FILE)))
            time_graph = self._directory / TIME_GRAPH_FILE
            self._time = undo.enter_context(closing(backend.open_engine(time_graph))) if time_graph.is_file() else None
            self._tensors: dict[str, Tensor] = {}
            self._positions: dict[int, Tensor] = {}  # of the rows of an engine
            rows, padded = manifest.rows, manifest.action.padded
            self.state = self._bind(self._action, "x_t", (1, rows, padded))
            self.velocity = self._bind(self._action, "velocity", (1, rows, padded))
            self._state_in_suffix = int(manifest.state_input is StateInput.SUFFIX_TOKEN)
            self._rows_after = rows + self._state_in_suffix
            self._time_name = "time_embedding" if self._time is None else "modulation"
            self.time = self._bind(self._action, self._time_name, self._sized(self._action, self._time_name, 1))
            self._robot_state: Tensor | None = None
            if self._state_in_suffix:
                self._robot_state = self._bind(self._action, "state", (1, manifest.state.padded))
            self._bind_tables(self._action, self._rows_after)
            frequencies = manifest.rope_theta ** -(np.arange(manifest.head_dim // 2) * 2.0 / max(manifest.head_dim, 1))
            self._rope = RopeKind("policy", tuple(frequencies))
            self._length = self._next_position = 0
            self._closing = undo.pop_all()

    @property
    def prefix_length(self) -> int:
        """Rows of the prefix that the action engine reads."""
        return self._length

    def _bind(self, engine: Engine, name: str, shape: tuple[int, ...], tensor: Tensor | None = None) -> Tensor:
        """Give an engine a tensor of its own, or ``tensor``. :raises PolicyError: it has none of such a shape."""
        spec = engine.inputs.get(name) or engine.outputs.get(name)
        fits = spec is not None and len(spec.shape) == len(shape) and all(
            want in (-1, have) for want, have in zip(spec.shape, shape, strict=True)
        )  # fmt: skip
        if spec is None or not fits:
            found = "nothing" if spec is None else f"shape {spec.shape}"
            raise PolicyError(
                f"an engine has {found} for {name!r}; the policy's manifest wants {shape}: build it again."
            )
        self.recordings.clear()  # they know the tensors of before
        tensor = tensor or self._backend.allocate(shape, spec.dtype)
        engine.bind(name, tensor)
        self._tensors[_key(engine, name)] = tensor
        return tensor

    def _bind_tables(self, engine: Engine, length: int) -> None:
        """Rotation tables and intervals, where an engine has them."""
        for name in ("rope_cos", "rope_sin"):
            if name in engine.inputs:
                self._bind(engine, name, (1, length, self._manifest.head_dim // 2))
                self._positions[id(engine)] = self._backend.allocate((1, length), DataType.INT32)
        if "attend_end" in engine.inputs:
            self._bind(engine, "attend_end", (1, length))

    def _bound(self, engine: Engine, name: str) -> Tensor:
        return self._tensors[_key(engine, name)]

    def _sized(self, engine: Engine, name: str, length: int) -> tuple[int, ...]:
        spec = engine.inputs.get(name) or engine.outputs.get(name)
        if spec is None:
            raise PolicyError(f"an engine has no tensor {name!r}; build the engine directory again.")
        return tuple(length if size == -1 else size for size in spec.shape)

    def _handoff_names(self, engine: Engine) -> list[str]:
        """What an engine gives and the action engine takes. :raises PolicyError: it gives something else too."""
        names = [name for name in engine.outputs if name in self._action.inputs]
        if set(engine.outputs) - set(names):
            raise PolicyError(f"{self._directory} holds engines that do not fit each other; build it again.")
        return names

    def time_tensor(self, embedding: np.ndarray) -> Tensor:
        """What ``time`` holds at a moment whose sines and cosines are float32 [width]; computed once and kept."""
        taken = self.time.shape if self._time is None else self._time.inputs["time_embedding"].shape
        if embedding.size != math.prod(taken):
            raise PolicyError(f"time_waves give {embedding.size} numbers; the engine takes {taken}: build it again.")
        result = self._backend.allocate(self.time.shape, self.time.dtype)
        if self._time is None:
            result.write(embedding.reshape(self.time.shape).astype(np.float32))
            return result
        given = self._backend.allocate((1, embedding.size), DataType.FLOAT32)
        given.write(embedding[None].astype(np.float32))
        self._time.bind("time_embedding", given)
        self._time.bind("modulation", result)
        self._time.run({"time_embedding": given.shape, "modulation": result.shape})
        self._backend.synchronize()
        return result

    def start_actions(self, noise: np.ndarray) -> None:
        """Make ready for denoising from float32 [H,padded]."""
        rows = self._rows_after
        self.state.write(noise[None].astype(np.float32))
        seen = np.full(rows, rows, dtype=np.int32)
        if self._manifest.suffix_mask is SuffixMask.CAUSAL:
            seen = 1 + np.arange(rows, dtype=np.int32)
        elif self._manifest.suffix_mask is SuffixMask.STATE_BLIND:
            seen[0] = 1
        self._place(self._action, self._next_position + np.arange(rows), self._length + seen)

    def run_step(self) -> None:
        """Velocity of the state in ``state`` at the time in ``time``."""
        fixed = {"x_t": self.state.shape, "velocity": self.velocity.shape, self._time_name: self.time.shape}
        if self._robot_state is not None:
            fixed["state"] = self._robot_state.shape
        self._action.run({**fixed, **self._tables(self._action, self._rows_after), **self._handoff_shapes()})

    def key(self, kind: str, *more: int) -> Key:
        """Under which a step of the action engine is recorded, after all that its shapes hang on."""
        return kind, (*more, *self._handoff_shapes().values())

    def _handoff_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what the action engine reads beside its own inputs."""
        return {}

    def _tables(self, engine: Engine, length: int) -> dict[str, tuple[int, ...]]:
        half = self._manifest.head_dim // 2
        shapes: dict[str, tuple[int, ...]] = {
            "rope_cos": (1, length, half), "rope_sin": (1, length, half), "attend_end": (1, length),
        }  # fmt: skip
        return {name: shape for name, shape in shapes.items() if name in engine.inputs}

    def _place(self, engine: Engine, positions: np.ndarray, ends: np.ndarray) -> None:
        """Fill rotation tables of the positions [n] of rows, and up to which key each of them looks, ``ends`` [n]."""
        shape = (1, len(positions))
        if "rope_cos" in engine.inputs:
            given = self._positions[id(engine)].prefix(shape)
            given.write(positions[None].astype(np.int32))
            tables = [
                self._bound(engine, name).prefix((*shape, self._manifest.head_dim // 2))
                for name in ("rope_cos", "rope_sin")
            ]
            self._backend.rope_tables(self._rope, given, *tables)
        if "attend_end" in engine.inputs:
            self._bound(engine, "attend_end").prefix(shape).write(ends[None].astype(np.int32))

    def close(self) -> None:
        """Close the engines; a second call does nothing."""
        self.recordings.clear()
        self._closing.close()


def _key(engine: Engine, name: str) -> str:
    return f"{id(engine)} {name}"
