"""Runs a model over a text to find how large the inputs of its matrices are, and how they go together.

What is run is the model at eight bits on ONNX Runtime, written to a folder for the time being. Squares and products
are summed up inside its graph, so that no activations have to be kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..engine_format import GRAPH_FILE
from ..errors import CheckpointError
from ..tokenizer_failures import tokenizer_failures
from .calibration_text import CALIBRATION_TEXT
from .families.base import DecoderConfig
from .families.decoder import EMBEDDING, build_decoder
from .graph import DATA_FILE, Graph
from .graph_parts import Value
from .input_moments import InputMoments, tile_of
from .lowerings import lowering
from .onnx_writer import GraphFiles, lay_out, write_weights
from .quantize import Precision, precision
from .tokenizer_check import read_tokenizer
from .weights import Weight

WINDOW = 512  # positions of a text that are run at once
WINDOWS = {4: 4, 8: 1}  # of them, by the bits of the wanted engine: eight bits need the squares alone


@dataclass(frozen=True)
class Findings:
    """By the name of the matrix: mean squares of its inputs float32 [columns]; moments where four bits are wanted."""

    squares: Mapping[str, np.ndarray]
    moments: Mapping[str, InputMoments]


class Calibration:
    """The graph that finds the moments; ``files`` says how large it will be on disk.

    ``wanted`` is the precision of the engine to be built.

    :raises CheckpointError: the model is of a shape that ONNX Runtime does not run.
    """

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Weight], wanted: Precision) -> None:
        self._config, self._embedding = config, weights[EMBEDDING]
        self._window = min(WINDOW, config.max_position_embeddings)
        self._windows = WINDOWS[wanted.bits]
        self._graph = Graph(lowering("onnxruntime"), precision("int8"), self._window)
        try:
            build_decoder(self._graph, config, weights)
        except CheckpointError as error:
            raise CheckpointError(f"no calibration: {error} Or build with --no-calibration.") from None
        self._outputs: dict[str, list[str]] = {}  # name -> the matrices that it is about
        self._sum_bytes = 0
        for product in self._graph.products:
            name, size, tile = product.x.name, 4 * product.columns, tile_of(product.columns)
            self._want(f"squares {name}", product.weight, product.x, self._sum_squares, size)
            if tile and wanted.stored_bits(product.weight) == 4:
                find = partial(self._products, tile=tile)
                self._want(f"moments {name}", product.weight, product.x, find, size * tile)
        self._graph.keep_only(list(self._outputs))
        self.files: GraphFiles = lay_out(self._graph, "calibration")

    @property
    def memory(self) -> int:
        """About the most bytes that a run takes, as measured: weights on disk, packed and in work, and the sums."""
        return 7 * (self.files.data_size + self._sum_bytes) // 2

    def _want(self, output: str, weight: str, x: Value, find: Callable[[Value], Value], size: int) -> None:
        if output not in self._outputs:
            self._sum_bytes += size
            self._graph.output(find(x), output, "float32", [])
        self._outputs.setdefault(output, []).append(weight)

    def _sum_squares(self, x: Value) -> Value:
        axes = self._graph.constant(np.array([0, 1], dtype=np.int64))
        return self._graph.node("ReduceSumSquare", [x, axes], keepdims=0)[0]

    def _products(self, x: Value, tile: int) -> Value:
        """X [1,S,columns] as [tiles,tile,tile]: products of the inputs of a tile, summed over the positions."""
        graph = self._graph
        shape = graph.constant(np.array([self._window, -1, tile], dtype=np.int64))
        (parts,) = graph.node("Reshape", [x, shape])
        left, right = (graph.node("Transpose", [parts], perm=perm)[0] for perm in ([1, 2, 0], [1, 0, 2]))
        return graph.node("MatMul", [left, right])[0]

    def fingerprint(self) -> bytes:
        """Digest of all that decides what is found, apart from the checkpoint."""
        return hashlib.sha256(CALIBRATION_TEXT.encode() + self.files.model).digest()

    def run(self, folder: Path, tokenizer_files: Mapping[str, bytes], progress: Callable[[int], None]) -> Findings:
        """What the text shows; ``folder`` is empty, and stays behind with the engine in it.

        :raises CheckpointError: a weight cannot be read, or ONNX Runtime fails.
        """
        windows = self._token_ids(tokenizer_files)
        write_weights(self._graph, self.files, folder / DATA_FILE, progress)
        (folder / GRAPH_FILE).write_bytes(self.files.model)
        sums: dict[str, Any] = {}
        try:
            for found in self._run_windows(folder / GRAPH_FILE, windows):
                for name, value in zip(self._outputs, found, strict=True):
                    sums[name] = sums.get(name, 0) + value
        except CheckpointError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base but this
            raise CheckpointError(
                f"the model could not be run for its calibration ({_first_line(error)}); give --no-calibration."
            ) from None
        count = np.float32(windows.size)
        means = {
            (output.split()[0], matrix): sums[output] / count
            for output, matrices in self._outputs.items()
            for matrix in matrices
        }
        return Findings(
            {matrix: value for (kind, matrix), value in means.items() if kind == "squares"},
            {matrix: InputMoments(value) for (kind, matrix), value in means.items() if kind == "moments"},
        )

    def _run_windows(self, path: Path, windows: np.ndarray) -> Iterator[list[np.ndarray]]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.enable_mem_pattern = options.enable_cpu_mem_arena = False  # a quarter less memory, and no slower
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise CheckpointError(
                f"the graph that calibrates does not load in onnxruntime {onnxruntime.__version__} "
                f"({_first_line(error)}); install a newer one, or give --no-calibration."
            ) from None
        wanted = [node.name for node in session.get_inputs()]
        for window in windows:
            feeds = self._feeds(window)
            yield session.run(list(self._outputs), {name: feeds[name] for name in wanted})

    def _token_ids(self, tokenizer_files: Mapping[str, bytes]) -> np.ndarray:
        """Ids of the text, int64 [windows, window]; a text that is too short is repeated."""
        tokenizer = read_tokenizer(tokenizer_files)
        with tokenizer_failures(CheckpointError, "fails on a text in English", "build with --no-calibration"):
            found = tokenizer.encode(CALIBRATION_TEXT).ids
        ids = np.array(found, dtype=np.int64)
        ids = ids[ids < self._config.vocab_size][: self._windows * self._window]
        if not ids.size:
            raise CheckpointError("the tokenizer gives no tokens for a text in English; build with --no-calibration.")
        return np.resize(ids, (max(1, len(ids) // self._window), self._window))

    def _feeds(self, window: np.ndarray) -> dict[str, np.ndarray]:
        """Every input of the graph for one text from its start, and caches to be overwritten."""
        size, config = self._window, self._config
        rows = [self._embedding.read_checked(token, token + 1) for token in window.tolist()]
        feeds = {
            "inputs_embeds": np.stack(rows, axis=1) * np.float32(config.embedding_scale),
            "past_length": np.zeros(1, dtype=np.int32),
            "query_length": np.array([size], dtype=np.int32),
            "last_token_index": np.arange(size, dtype=np.int32)[None],
        }
        for kind, rope in config.rope.items():
            angles = np.arange(size)[:, None] * np.array(rope.inverse_frequency)
            feeds[f"rope_cos_{kind}"] = (np.cos(angles) * rope.scale).astype(np.float32)[None]
            feeds[f"rope_sin_{kind}"] = (np.sin(angles) * rope.scale).astype(np.float32)[None]
        for layer, (heads, head_dim) in enumerate(config.kv_layers):
            for kind in ("key", "value"):
                feeds[f"past_{kind}_{layer}"] = np.zeros((1, heads, size, head_dim), dtype=np.float32)
        for layer in range(config.deepstack):  # planes of an image, and here is none
            feeds[f"deepstack_{layer}"] = np.zeros((1, size, config.hidden_size), dtype=np.float32)
        return feeds


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
