"""The engines of a prefix policy and their tensors: pictures in, keys and values of the prefix, one denoise step.

Everything is allocated once, for the most cameras and the longest prompt. Keys and values go from the prefix engine's
outputs to the action engine's inputs without a copy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..backends.base import Backend, DataType, Engine, RopeKind, Tensor
from ..engine_format import EMBEDDING_FILE, VISUAL_DIRECTORY, VISUAL_GRAPH_FILE
from ..errors import PolicyError
from .policy_manifest import ACTION_DIRECTORY, PolicyManifest, StateInput, SuffixMask

PREFIX_GRAPH_FILE, ACTION_GRAPH_FILE, TIME_GRAPH_FILE = "prefix.onnx", "action.onnx", "time.onnx"


class PolicyEngines:
    """Owned by one thread. :raises PolicyError: a graph is not what the manifest says."""

    def __init__(self, directory: Path, manifest: PolicyManifest, backend: Backend) -> None:
        self._backend, self._manifest = backend, manifest
        self._visual = backend.open_engine(directory / VISUAL_DIRECTORY / VISUAL_GRAPH_FILE)
        self._prefix = backend.open_engine(directory / ACTION_DIRECTORY / PREFIX_GRAPH_FILE)
        self._action = backend.open_engine(directory / ACTION_DIRECTORY / ACTION_GRAPH_FILE)
        time_graph = directory / ACTION_DIRECTORY / TIME_GRAPH_FILE
        self._time = backend.open_engine(time_graph) if time_graph.is_file() else None
        self._embeddings = backend.open_embeddings(directory / EMBEDDING_FILE, scale=manifest.text_scale)
        cameras = len(manifest.cameras)
        width = self._embeddings.shape[1]
        self._image_rows = manifest.image_tokens
        self._state_in_prefix = int(manifest.state_input is StateInput.PREFIX_TOKEN)
        self._state_in_suffix = int(manifest.state_input is StateInput.SUFFIX_TOKEN)
        self.longest_prefix = cameras * manifest.image_tokens + manifest.prompt_tokens + self._state_in_prefix
        self._tensors: dict[str, Tensor] = {}
        height, across = manifest.image_size
        self._pixels = self._bind(self._visual, "pixel_values", (cameras, 3, height, across))
        self._images = self._bind(self._visual, "image_embeds", (cameras, manifest.image_tokens, width))
        self._embeds = self._bind(self._prefix, "prefix_embeds", (1, self.longest_prefix, width))
        self._state: Tensor | None = None
        if self._state_in_prefix or self._state_in_suffix:
            owner = self._prefix if self._state_in_prefix else self._action
            self._state = self._bind(owner, "state", (1, manifest.state.padded))
        self.state = self._bind(self._action, "x_t", (1, manifest.horizon, manifest.action.padded))
        self.velocity = self._bind(self._action, "velocity", (1, manifest.horizon, manifest.action.padded))
        self._rows_after = manifest.horizon + self._state_in_suffix
        name = "time_embedding" if self._time is None else "modulation"
        self._time_name = name
        self.time = self._bind(self._action, name, self._sized(self._action, name, 1))
        for engine, length in ((self._prefix, self.longest_prefix), (self._action, self._rows_after)):
            for name in ("rope_cos", "rope_sin"):
                self._bind(engine, name, (1, length, manifest.head_dim // 2))
            if "attend_end" in engine.inputs:
                self._bind(engine, "attend_end", (1, length))
        self._handoff = [name for name in self._prefix.outputs if name in self._action.inputs]
        if set(self._prefix.outputs) - set(self._handoff):
            raise PolicyError(
                f"{directory / ACTION_DIRECTORY} holds engines that do not fit each other; build it again."
            )
        for name in self._handoff:
            self._bind(self._prefix, name, self._sized(self._prefix, name, self.longest_prefix))
            self._action.bind(name, self._tensors[_key(self._prefix, name)])
        self._ids = backend.allocate((max(manifest.prompt_tokens, 1),), DataType.INT32)
        self._rows = backend.allocate((self.longest_prefix,), DataType.INT32)
        frequencies = manifest.rope_theta ** -(np.arange(manifest.head_dim // 2) * 2.0 / max(manifest.head_dim, 1))
        self._rope = RopeKind("policy", tuple(frequencies))
        self._positions = backend.allocate((max(self.longest_prefix, self._rows_after),), DataType.INT32)
        self._length = 0

    @property
    def prefix_length(self) -> int:
        """Positions of the prefix that the action engine reads."""
        return self._length

    def _bind(self, engine: Engine, name: str, shape: tuple[int, ...]) -> Tensor:
        spec = engine.inputs.get(name) or engine.outputs.get(name)
        fits = spec is not None and len(spec.shape) == len(shape) and all(
            want in (-1, have) for want, have in zip(spec.shape, shape, strict=True)
        )  # fmt: skip
        if spec is None or not fits:
            found = "nothing" if spec is None else f"shape {spec.shape}"
            raise PolicyError(
                f"an engine has {found} for {name!r}; the policy's manifest wants {shape}: build it again."
            )
        tensor = self._backend.allocate(shape, spec.dtype)
        engine.bind(name, tensor)
        self._tensors[_key(engine, name)] = tensor
        return tensor

    def _sized(self, engine: Engine, name: str, length: int) -> tuple[int, ...]:
        spec = engine.inputs.get(name) or engine.outputs.get(name)
        if spec is None:
            raise PolicyError(f"an engine has no tensor {name!r}; build the engine directory again.")
        return tuple(length if size == -1 else size for size in spec.shape)

    def time_tensor(self, embedding: np.ndarray) -> Tensor:
        """What ``time`` holds at a moment whose sines and cosines are float32 [width]; computed once and kept."""
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

    def encode_images(self, pixels: np.ndarray) -> None:
        """Run the image tower on float32 [n,3,height,width]; its rows stay on the device."""
        count = len(pixels)
        self._pixels.prefix(pixels.shape).write(pixels)
        shape = (count, *self._images.shape[1:])
        self._visual.run({"pixel_values": pixels.shape, "image_embeds": shape})

    def run_prefix(self, cameras: int, token_ids: list[int], state: np.ndarray) -> None:
        """Run the prefix of ``cameras`` encoded pictures, the prompt and the normalised state float32 [padded].

        A state that comes after the prefix is kept for the action steps.
        """
        image_rows, width = cameras * self._image_rows, self._embeds.shape[2]
        count = image_rows + len(token_ids)
        embeds = self._embeds.prefix((count, width))
        table = self._backend.allocate((1, max(len(token_ids), 1), width), DataType.FLOAT32)
        ids = self._ids.prefix((1, max(len(token_ids), 1)))
        ids.write(np.array([token_ids or [0]], dtype=np.int32))
        self._backend.gather_embeddings(self._embeddings, ids, table)
        sources = ((self._images.prefix((image_rows, width)), 0), (table.prefix((len(token_ids), width)), image_rows))
        for source, start in sources:
            if source.shape[0]:
                rows = self._rows.prefix((source.shape[0],))
                rows.write(np.arange(start, start + source.shape[0], dtype=np.int32))
                self._backend.splice_rows(source, rows, embeds)
        if self._state is not None:
            self._state.write(state[None].astype(np.float32))
        self._length = length = count + self._state_in_prefix
        ends = np.full((1, length), count, dtype=np.int32)
        ends[0, -1] = length  # a state at the end sees itself; nobody else sees it
        self._place(self._prefix, 0, length, ends)
        shapes = {"prefix_embeds": (1, count, width), **self._tables(self._prefix, length)}
        if self._state_in_prefix:
            shapes["state"] = (1, state.size)
        self._prefix.run({**shapes, **self._handoff_shapes()})

    def start_actions(self, noise: np.ndarray) -> None:
        """Make ready for denoising from float32 [H,padded]."""
        rows = self._rows_after
        self.state.write(noise[None].astype(np.float32))
        seen = np.full(rows, rows, dtype=np.int32)
        if self._manifest.suffix_mask is SuffixMask.CAUSAL:
            seen = 1 + np.arange(rows, dtype=np.int32)
        elif self._manifest.suffix_mask is SuffixMask.STATE_BLIND:
            seen[0] = 1
        self._place(self._action, self._length, rows, (self._length + seen)[None])

    def run_step(self) -> None:
        """Velocity of the state in ``state`` at the time in ``time``."""
        fixed = {"x_t": self.state.shape, "velocity": self.velocity.shape, self._time_name: self.time.shape}
        if self._state_in_suffix and self._state is not None:
            fixed["state"] = self._state.shape
        self._action.run({**fixed, **self._tables(self._action, self._rows_after), **self._handoff_shapes()})

    def _tables(self, engine: Engine, length: int) -> dict[str, tuple[int, ...]]:
        half = self._manifest.head_dim // 2
        shapes: dict[str, tuple[int, ...]] = {"rope_cos": (1, length, half), "rope_sin": (1, length, half)}
        return {**shapes, "attend_end": (1, length)} if "attend_end" in engine.inputs else shapes

    def _handoff_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self._sized(self._prefix, name, self._length) for name in self._handoff}

    def _place(self, engine: Engine, start: int, length: int, ends: np.ndarray) -> None:
        """Fill rotation tables and intervals of ``length`` positions from ``start`` on."""
        positions = self._positions.prefix((1, length))
        positions.write(np.arange(start, start + length, dtype=np.int32)[None])
        half = self._manifest.head_dim // 2
        tables = [self._tensors[_key(engine, name)].prefix((1, length, half)) for name in ("rope_cos", "rope_sin")]
        self._backend.rope_tables(self._rope, positions, *tables)
        if "attend_end" in engine.inputs:
            self._tensors[_key(engine, "attend_end")].prefix((1, length)).write(ends)

    def close(self) -> None:
        """Close the engines; a second call does nothing."""
        for engine in (self._visual, self._prefix, self._action, self._time):
            if engine is not None:
                engine.close()


def _key(engine: Engine, name: str) -> str:
    return f"{id(engine)} {name}"
