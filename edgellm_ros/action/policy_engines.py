"""The engines of a policy with a prefix of tiles: pictures in, keys and values of the prefix, one denoise step.

Everything is allocated once, for the most cameras and the longest prompt. The image tower writes where the prefix
engine reads, and keys and values go from its outputs to the action engine's inputs: neither is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from ..backends.base import Backend, DataType, Tensor
from ..engine_format import EMBEDDING_FILE, VISUAL_DIRECTORY, VISUAL_GRAPH_FILE
from ..vision.device_letterbox import DeviceLetterbox
from ..vision.processors.letterbox import LetterboxProcessor
from ..vision.pruner import PruningReport, VisualPrunerConfig, prune_prompt
from .action_engine import PREFIX_GRAPH_FILE, ActionEngine
from .policy_manifest import ImageFit, PolicyManifest, StateInput


class PolicyEngines(ActionEngine):
    """Owned by one thread. :raises PolicyError: a graph is not what the manifest says."""

    def __init__(self, directory: Path, manifest: PolicyManifest, backend: Backend) -> None:
        super().__init__(directory, manifest, backend)
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            height, across = manifest.image_size
            centred, smooth = (
                manifest.image_fit is not ImageFit.PAD_LEFT_TOP,
                manifest.image_fit is ImageFit.PAD_CENTRE_SMOOTH,
            )
            self._fit = LetterboxProcessor(height, across, centred, manifest.image_tokens, smooth)
            visual = directory / VISUAL_DIRECTORY / VISUAL_GRAPH_FILE
            self._visual = undo.enter_context(closing(backend.open_engine(visual)))
            self._prefix = undo.enter_context(closing(backend.open_engine(self._directory / PREFIX_GRAPH_FILE)))
            self._embeddings = backend.open_embeddings(directory / EMBEDDING_FILE, scale=manifest.text_scale)
            self._cameras, cameras, width = 0, len(manifest.seen_cameras), self._embeddings.shape[1]
            self._image_rows = manifest.image_tokens
            self._state_in_prefix = int(manifest.state_input is StateInput.PREFIX_TOKEN)
            self.longest_prefix = cameras * manifest.image_tokens + manifest.prompt_tokens + self._state_in_prefix
            self._pixels = self._bind(self._visual, "pixel_values", (cameras, 3, height, across))
            self._embeds = self._bind(self._prefix, "prefix_embeds", (1, self.longest_prefix, width))
            self._device_fit = DeviceLetterbox(backend, self._fit) if backend.images.preferred else None
            if self._device_fit is not None:
                undo.callback(self._device_fit.close)
            fitted = cameras if self._device_fit is None else 0  # kept: new pages for every chunk cost milliseconds
            self._fitted = np.empty((fitted, *self._pixels.shape[1:]), np.float32)
            shape = (cameras, manifest.image_tokens, width)
            # they stand first
            self._images = self._bind(self._visual, "image_embeds", shape, self._embeds.prefix(shape))
            self._prefix_state = (
                self._bind(self._prefix, "state", (1, manifest.state.padded)) if self._state_in_prefix else None
            )
            self._bind_tables(self._prefix, self.longest_prefix)
            self._handoff = self._handoff_names(self._prefix)
            for name in self._handoff:
                tensor = self._bind(self._prefix, name, self._sized(self._prefix, name, self.longest_prefix))
                self._action.bind(name, tensor)
            self._ids = backend.allocate((1, max(manifest.prompt_tokens, 1)), DataType.INT32)
            self._words = backend.allocate((*self._ids.shape, width), DataType.FLOAT32)
            self._left: Tensor | None = None  # rows that a pruner leaves, once there was one
            self._rows = backend.allocate((self.longest_prefix,), DataType.INT32)
            self._closing = undo.pop_all()

    def fit(self, images: Sequence[np.ndarray]) -> Tensor:
        """Pictures uint8 RGB [H,W,3] as the tower takes them, float32 [n,3,height,width] that the next call overwrites.

        On a GPU, frames go there as bytes and its kernels fit them.
        """
        pixels = self._pixels.prefix((len(images), *self._pixels.shape[1:]))
        if self._device_fit is not None:
            self._device_fit.fill(images, pixels)
        else:
            fitted = self._fitted[: len(images)]
            self._fit.fill(images, fitted)
            pixels.write(fitted)
        return pixels

    def encode_images(self, pixels: Tensor) -> None:
        """Run the image tower on what ``fit`` gave, [n,3,height,width]; its rows stay on the device."""
        self._cameras = count = pixels.shape[0]
        shapes = {"pixel_values": pixels.shape, "image_embeds": (count, *self._images.shape[1:])}
        self.recordings.run(("vision", count), lambda: self._visual.run(shapes))

    def run_prefix(self, token_ids: list[int], state: np.ndarray, pruner: VisualPrunerConfig) -> PruningReport:
        """Run the prefix of the encoded pictures, the prompt and the normalised state float32 [padded].

        A state that comes after the prefix is kept for the action steps. What the pruner leaves keeps its positions,
        and actions follow behind the unpruned prefix.
        """
        count = self._cameras * self._image_rows + len(token_ids)
        embeds = self._embed(token_ids)
        spans = [(at * self._image_rows, (at + 1) * self._image_rows) for at in range(self._cameras)]
        pruned = prune_prompt(self._backend, embeds, spans, pruner)
        positions = np.arange(count + self._state_in_prefix)
        self._next_position = len(positions)
        if pruned.keep is not None:
            positions = np.append(np.array(pruned.keep), positions[count:])
            count = len(pruned.keep)
            rows = self._rows.prefix((count,))
            rows.write(np.array(pruned.keep, dtype=np.int32))
            if self._left is None:
                self._left = self._backend.allocate(self._embeds.shape, embeds.dtype)
            left = self._left.prefix((count, embeds.shape[1]))
            self._backend.gather_rows(embeds, rows, left)
            self._backend.copy(left, self._embeds.prefix(left.shape))
        for tensor in (self._prefix_state, self._robot_state):
            if tensor is not None:
                tensor.write(state[None].astype(np.float32))
        length = self._length = len(positions)
        ends = np.full(length, count)
        ends[-1] = length  # a state at the end sees itself; nobody else sees it
        self._place(self._prefix, positions, ends)
        shapes = {"prefix_embeds": (1, count, embeds.shape[1]), **self._tables(self._prefix, length)}
        if self._state_in_prefix:
            shapes["state"] = (1, state.size)
        shapes |= self._handoff_shapes()
        self.recordings.run(("prefix", length), lambda: self._prefix.run(shapes))
        return pruned.report

    def _embed(self, token_ids: list[int]) -> Tensor:
        """The prompt's rows behind those of the pictures, which are there; all of them, [count,width]."""
        image_rows, words, width = self._cameras * self._image_rows, len(token_ids), self._embeds.shape[2]
        embeds = self._embeds.prefix((image_rows + words, width))
        if words:
            ids, table, rows = self._ids.prefix((1, words)), self._words, self._rows.prefix((words,))
            ids.write(np.array([token_ids], dtype=np.int32))
            self._backend.gather_embeddings(self._embeddings, ids, table.prefix((1, words, width)))
            rows.write(np.arange(image_rows, image_rows + words, dtype=np.int32))
            self._backend.splice_rows(table.prefix((words, width)), rows, embeds)
        return embeds

    def _handoff_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self._sized(self._prefix, name, self._length) for name in self._handoff}
