"""A backend without a model: the seam played from a script, faults included, for every test that needs no weights.

The KV cache keeps the token ids themselves, and an answer is found from those alone: a wrong cache slot, row move,
chunk length or position changes what is said or raises.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import BackendError, MisuseError
from ..json_values import read_json
from .base import CacheLayout, DataType, EngineCapabilities, KVCache, Tensor, TensorSpec
from .fake_directory import (
    FAKE_FILE,
    HIDDEN_SIZE,
    INVERSE_FREQUENCY,
    ROPE_KIND,
    embedding_rows,
    write_fake_engine_directory,
)
from .fake_kv_cache import EMPTY, FakeKVCache
from .fake_script import FakeMode, FakeScript, Fault, ScriptReader, history_digest
from .host_backend import HostBackend
from .host_tensor import HostTensor, host_tensor

__all__ = ["FakeBackend", "FakeEngine", "FakeKVCache", "FakeMode", "FakeScript", "Fault", "write_fake_engine_directory"]


class FakeEngine:
    """Reads ids from ``inputs_embeds``, appends them to the cache, and puts the peak of the logits on the next one."""

    def __init__(self, script: FakeScript, released: threading.Event, hanging: threading.Event) -> None:
        self._script = script
        self._reader = ScriptReader(script)
        self._released, self._hanging, self._closed = released, hanging, threading.Event()
        self._faults_left = math.inf if script.fault_times == 0 else script.fault_times
        self._bound: dict[str, HostTensor] = {}
        self._cache: FakeKVCache | None = None
        vocab_size = self._reader.vocabulary.size
        self._rows = embedding_rows(vocab_size)
        self._floor = np.random.default_rng(1).random(vocab_size, dtype=np.float32)
        half = len(INVERSE_FREQUENCY)
        self._inputs = {
            spec.name: spec
            for spec in (
                TensorSpec("inputs_embeds", DataType.FLOAT32, (-1, -1, HIDDEN_SIZE)),
                TensorSpec(f"rope_cos_{ROPE_KIND}", DataType.FLOAT32, (-1, -1, half)),
                TensorSpec(f"rope_sin_{ROPE_KIND}", DataType.FLOAT32, (-1, -1, half)),
                TensorSpec("past_length", DataType.INT32, (-1,)),
                TensorSpec("query_length", DataType.INT32, (-1,)),
                TensorSpec("last_token_index", DataType.INT32, (-1, -1)),
            )
        }
        self._outputs = {"logits": TensorSpec("logits", DataType.FLOAT32, (-1, -1, vocab_size))}
        self._capabilities = EngineCapabilities(
            ragged_chunks=True,
            interval_mask=False,
            capture=True,
            mixed_positions=16,
            details={"engine": f"fake, {script.mode.value}"},
        )

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """Those of a causal text model."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """``logits`` [B,R,V]."""
        return self._outputs

    @property
    def capabilities(self) -> EngineCapabilities:
        """Causal, ragged chunks."""
        return self._capabilities

    def bind(self, name: str, tensor: Tensor) -> None:
        """:raises ValueError: unknown name or another element type."""
        spec = self._inputs.get(name) or self._outputs.get(name)
        if spec is None:
            raise ValueError(f"{name!r} is no tensor of this engine; want one of {[*self._inputs, *self._outputs]}.")
        if tensor.dtype is not spec.dtype:
            raise ValueError(f"{name!r} was bound to {tensor.dtype.value}; want {spec.dtype.value}.")
        self._bound[name] = host_tensor(tensor)

    def bind_cache(self, cache: KVCache) -> None:
        """Use these caches."""
        if not isinstance(cache, FakeKVCache):
            raise MisuseError(f"a {type(cache).__name__} was given to the fake engine; want a cache of its backend.")
        self._cache = cache

    def length_bucket(self, positions: int) -> int:
        """0: its cost does not depend on lengths."""
        return 0

    def run(self, shapes: Mapping[str, tuple[int, ...]], first_row: int = 0, cache_length: int = 0) -> None:
        """:raises BackendError: a fault of the script, or numbers that no correct caller would give."""
        if self._closed.is_set():
            raise BackendError("the fake engine is closed; open a new one.")
        cache = self._cache
        if cache is None:
            raise MisuseError("the fake engine has no cache; call bind_cache first.")
        views = self._views(shapes)
        embeds, past, query = views["inputs_embeds"], views["past_length"], views["query_length"]
        batch, chunk = embeds.shape[:2]
        if first_row < 0 or first_row + batch > cache.rows:
            raise BackendError(f"rows {first_row}..{first_row + batch} were run; the cache has {cache.rows}.")
        cosine, sine = views[f"rope_cos_{ROPE_KIND}"], views[f"rope_sin_{ROPE_KIND}"]
        self._wait(self._script.step_latency if chunk == 1 else self._script.prefill_latency * int(query.max()))
        positions = np.rint(np.arctan2(sine[..., 0], cosine[..., 0]) / INVERSE_FREQUENCY[0]).astype(np.int32)
        new_slots = [
            self._read_row(embeds[row], positions[row], int(past[row]), int(query[row]), cache.slots[first_row + row])
            for row in range(batch)
        ]
        found: list[tuple[int, int, list[int], int, int]] = []
        for row, slots in enumerate(new_slots):
            ids = [*cache.slots[first_row + row, : past[row], 0].tolist(), *slots[:, 0].tolist()]
            for column, last in enumerate(views["last_token_index"][row].tolist()):
                if not 0 <= last < len(slots):
                    raise BackendError(f"last_token_index {last} of row {row} lies outside its {len(slots)} positions.")
                history = ids[: int(past[row]) + last + 1]
                found.append((row, column, history, *self._reader.next_token(history)))
        broken = self._strike(found)
        for row, slots in enumerate(new_slots):
            cache.slots[first_row + row, past[row] : past[row] + len(slots)] = slots
        for row, column, history, token_id, _ in found:
            self._fill(views["logits"][row, column], history, token_id)
            if (row, column) in broken:
                views["logits"][row, column] = np.nan

    def _views(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        views = {}
        for name, spec in {**self._inputs, **self._outputs}.items():
            if name not in self._bound or name not in shapes:
                raise BackendError(f"{name!r} is not bound or has no shape; bind every tensor and give its shape.")
            shape = tuple(shapes[name])
            fits = len(shape) == len(spec.shape) and all(
                want in (-1, have) for want, have in zip(spec.shape, shape, strict=True)
            )
            if not fits:
                raise BackendError(f"{name!r} was run with shape {shape}; want {spec.shape}.")
            try:
                views[name] = self._bound[name].prefix(shape).array
            except ValueError as error:
                raise BackendError(f"{name!r}: {error}") from None
        batch, chunk = views["inputs_embeds"].shape[:2]
        for name, view in views.items():
            chunked = name == "inputs_embeds" or name.startswith("rope_")
            if view.shape[0] != batch or (chunked and view.shape[1] != chunk):
                raise BackendError(f"{name!r} was run with shape {view.shape}; want batch {batch}, chunk {chunk}.")
        return views

    def _read_row(
        self, embeds: np.ndarray, positions: np.ndarray, past: int, count: int, cached: np.ndarray
    ) -> np.ndarray:
        """int32 [count, 2]: the (id, position) slots of one row's chunk."""
        if not (past >= 0 and 0 <= count <= len(embeds) and past + count <= len(cached)):
            raise BackendError(
                f"{count} positions after {past} were run in a chunk of {len(embeds)}; the cache has {len(cached)}."
            )
        ids = np.rint(embeds[:count, 0]).astype(np.int32)
        known = (ids >= 0) & (ids < len(self._rows))
        if not known.all() or not np.array_equal(self._rows[ids], embeds[:count]):
            raise BackendError(
                "an embedding is no row of the fake engine's table; gather it from the directory's file."
            )
        if past and (cached[:past, 0] == EMPTY).any():
            raise BackendError(f"past_length is {past}, but not all of those cache slots were written.")
        before = int(cached[past - 1, 1]) if past else EMPTY
        if count and (
            positions[0] <= before or (not past and positions[0] != 0) or (np.diff(positions[:count]) < 1).any()
        ):
            raise BackendError(
                f"positions {positions[:count].tolist()} follow {before}; want them to start at 0 and to increase."
            )
        return np.stack([ids, positions[:count]], axis=1)

    def _strike(self, found: list[tuple[int, int, list[int], int, int]]) -> set[tuple[int, int]]:
        """Let the script's fault happen where its step is reached; returns the rows whose logits it spoils."""
        fault = self._script.fault
        struck = {(row, column) for row, column, _, _, done in found if done == self._script.fault_step}
        if fault is Fault.NONE or not struck or self._faults_left <= 0:
            return set()
        self._faults_left -= 1
        if fault is Fault.OUT_OF_MEMORY:
            raise BackendError("out of memory: the fake engine was told to fail here.")
        if fault is Fault.RAISE:
            raise BackendError("the fake engine was told to fail here.")
        if fault is Fault.CRASH:
            raise RuntimeError("the fake engine was told to crash here.")
        if fault is Fault.HANG:
            self._hanging.set()
            self._wait(self._script.hang_timeout, self._released)
            self._hanging.clear()
            return set()
        return struck

    def _wait(self, seconds: float, released: threading.Event | None = None) -> None:
        """Spend time, unless the engine is closed (or the hang released) meanwhile."""
        if seconds > 0:
            if released is None:
                self._closed.wait(seconds)
            else:
                self._closed_or(released, seconds)
        if self._closed.is_set():
            raise BackendError("the fake engine was closed while it ran.")

    def _closed_or(self, released: threading.Event, seconds: float) -> None:
        slice_length = 0.005
        for _ in range(math.ceil(seconds / slice_length)):
            if self._closed.is_set() or released.wait(slice_length):
                return

    def _fill(self, logits: np.ndarray, history: list[int], token_id: int) -> None:
        """A peak on ``token_id``; the rest uneven, so that no two logits are equal."""
        seeded = self._script.mode is FakeMode.SEEDED
        peak = self._script.peak if self._script.peak is not None else (6.0 if seeded else 30.0)
        if seeded:
            noise = np.random.default_rng(int.from_bytes(history_digest(history)[8:], "little"))
            logits[...] = noise.normal(-1.0, 1.0, logits.size)
            logits[128:] -= 12.0  # bytes that begin no text, and special tokens
            logits[:32] -= 12.0
        else:
            logits[...] = self._floor
        logits[token_id] = logits.max() + peak

    def close(self) -> None:
        """End a run that hangs or waits; a second call does nothing."""
        self._closed.set()


class FakeBackend(HostBackend):
    """Opens engine directories that ``write_fake_engine_directory`` wrote.

    ``hanging`` is set while a run hangs, and ``release`` lets it (and later ones) go on; both may be used from any
    thread, as may ``close``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hanging = threading.Event()
        self._released = threading.Event()

    @property
    def name(self) -> str:
        """``fake``."""
        return "fake"

    def open_engine(
        self,
        path: Path,
        *,
        cache_layout: CacheLayout | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> FakeEngine:
        """The script of an engine directory; ``path`` is the directory or any file in it.

        :raises EngineDirectoryError: no script there, or one that cannot be read.
        """
        self._check_open()
        if weights is not None:
            raise BackendError(
                f"the backend {self.name} takes no weights from a checkpoint; build them into the engine."
            )
        path = Path(path)
        directory = path if path.is_dir() else path.parent
        engine = FakeEngine(FakeScript.from_json(read_json(directory / FAKE_FILE)), self._released, self.hanging)
        self._engines.add(engine)
        return engine

    def allocate_kv_cache(self, layout: CacheLayout, rows: int, capacity: int) -> FakeKVCache:
        """A cache of ids."""
        self._check_open()
        cache = FakeKVCache(layout, rows, capacity)
        self._count("caches", cache, cache.slots.nbytes)
        return cache

    def release(self) -> None:
        """Let a hanging run go on, and none hang from now on."""
        self._released.set()
