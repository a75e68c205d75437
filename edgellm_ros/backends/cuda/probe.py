"""What a loaded engine can really do on this GPU, found by running it on a few invented tokens.

Five tokens are run at once and in chunks, in two contexts; what another context changes in the last logits is the
yardstick for what a chunk may change. Then two rows of different length decode one token together. Where all that
holds, a run is recorded to see whether steps can be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import BackendError, EdgeLLMError
from ..base import DataType, EngineCapabilities
from ..engine_tensors import is_language_model
from ..probe_tokens import CAPACITY, TOKENS, ProbeTokens, Row, allowed_error
from .engine_frame import EngineFrame
from .graphs import Recorder
from .kv_cache import CUDAKVCache
from .tensor import CUDATensor


class LanguageProbe:
    """Five tokens in two contexts, and the means to run them.

    ``rows`` and ``chunk`` are the most that the engine takes (0: any number).
    """

    def __init__(
        self,
        engine: EngineFrame,
        make_tensor: Callable[[np.ndarray, DataType], CUDATensor],
        make_cache: Callable[[int, int], CUDAKVCache],
        rows: int = 0,
        chunk: int = 0,
    ) -> None:
        self._engine, self._make_tensor, self._make_cache = engine, make_tensor, make_cache
        self._rows = rows or 2
        self._tokens_at_once = chunk or TOKENS
        self._tokens = ProbeTokens(engine.inputs["inputs_embeds"].shape[2])
        self._shapes: dict[str, tuple[int, ...]] = {}

    def run(self, details: dict[str, str]) -> bool:
        """True when rows of one call may hold different numbers of positions.

        :raises BackendError: the engine's numbers cannot be relied on.
        """
        step = self._tokens_at_once
        whole, other = (
            self._last_logits([[(context, start, min(start + step, TOKENS))] for start in range(0, TOKENS, step)])[0]
            for context in (0, 1)
        )
        if not np.isfinite(whole).all():
            raise BackendError("its logits are not finite")
        allowed = allowed_error(whole, other)
        chunks = [(0, 0, 3), (0, 3, 4), (0, 4, 5)] if step >= 3 else [(0, at, at + 1) for at in range(TOKENS)]
        self._compare(details, "chunk_error", self._last_logits([[row] for row in chunks])[0] - whole, allowed)
        if self._rows < 2:
            return False
        together = self._decode_together(chunks)
        self._compare(details, "batch_error", together - np.stack([whole, other]), allowed)
        if "query_length" not in self._engine.inputs or step < 3:
            return False
        try:
            ragged = self._last_logits([[(0, 0, 3), (0, 0, 2)], [(0, 3, 5), (0, 2, 5)]])
        except BackendError as refusal:
            details["ragged_chunk_error"] = str(refusal)[:120]
            return False
        error = float(np.linalg.norm(ragged - whole, axis=1).max())
        details["ragged_chunk_error"] = f"{error:.2e} of {allowed:.2e}"
        return error <= allowed

    @staticmethod
    def _compare(details: dict[str, str], name: str, difference: np.ndarray, allowed: float) -> None:
        error = float(np.linalg.norm(np.atleast_2d(difference), axis=1).max())
        details[name] = f"{error:.2e} of {allowed:.2e}"
        if not error <= allowed:
            raise BackendError(
                "a prompt in pieces or beside another one gives other logits than alone at once "
                f"({name} {details[name]})"
            )

    def can_record(self, recorder: Recorder, details: dict[str, str]) -> bool:
        """Whether a decode call may be recorded once it has run."""
        self._engine.bind_cache(self._make_cache(1, CAPACITY))
        self._call([(0, 0, 1)])
        try:
            recording = recorder.record(lambda: self._engine.run(self._shapes))
        except EdgeLLMError as error:
            details["capture"] = str(error)[:300]
            return False
        recorder.discard(recording)
        details["capture"] = "yes"
        return True

    def _decode_together(self, chunks: list[Row]) -> np.ndarray:
        """Logits of the last token of both contexts, each prefilled alone and decoded in one call."""
        engine = self._engine
        engine.bind_cache(self._make_cache(2, CAPACITY))
        for context in (0, 1):
            for _, start, end in chunks[:-1]:
                self._call([(context, start, end)], first_row=context)
        return self._call([(0, 4, 5), (1, 4, 5)])

    def _last_logits(self, calls: list[list[Row]]) -> np.ndarray:
        """Logits [B, V] of the last position after ``calls``."""
        self._engine.bind_cache(self._make_cache(len(calls[0]), CAPACITY))
        logits = np.empty(0, dtype=np.float32)
        for rows in calls:
            logits = self._call(rows)
        return logits

    def _call(self, rows: list[Row], first_row: int = 0) -> np.ndarray:
        engine = self._engine
        batch, chunk = len(rows), max(end - start for _, start, end in rows)
        shapes: dict[str, tuple[int, ...]] = {}
        for name, values in self._tokens.inputs(engine.inputs, rows).items():
            shapes[name] = values.shape
            engine.bind(name, self._make_tensor(values, engine.inputs[name].dtype))
        for name, spec in engine.outputs.items():  # hidden states
            free = iter((batch, chunk))
            shapes[name] = tuple(next(free) if size == -1 else size for size in spec.shape)
            engine.bind(name, self._make_tensor(np.zeros(shapes[name], dtype=spec.dtype.numpy), spec.dtype))
        shapes["logits"] = (batch, 1, engine.outputs["logits"].shape[2])
        logits = self._make_tensor(np.zeros(shapes["logits"], dtype=np.float32), DataType.FLOAT32)
        engine.bind("logits", logits)
        engine.run(shapes, first_row)
        self._shapes = shapes
        return logits.numpy()[:, 0]


def probe(
    engine: EngineFrame,
    recorder: Recorder,
    make_tensor: Callable[[np.ndarray, DataType], CUDATensor],
    make_cache: Callable[[int, int], CUDAKVCache],
    library: str,
    rows: int = 0,
    chunk: int = 0,
) -> EngineCapabilities:
    """Run the engine and say what it can do.

    :raises BackendError: its numbers cannot be relied on.
    """
    details = {"library": library}
    ragged = capture = False
    if is_language_model(engine.inputs, engine.outputs):
        language = LanguageProbe(engine, make_tensor, make_cache, rows, chunk)
        try:
            ragged = language.run(details)
            capture = language.can_record(recorder, details)
        except BackendError as error:
            raise BackendError(
                f"the probe of this engine failed under {library}: {error}; build the engine directory again, or "
                "install another version."
            ) from None
        finally:
            engine.unbind()
    return EngineCapabilities(
        ragged_chunks=ragged,
        interval_mask="attend_start" in engine.inputs and "attend_end" in engine.inputs,
        tree_mask="tree_mask" in engine.inputs,
        capture=capture,
        cache_dtypes=(engine.cache_layout.dtype,),
        details=details,
    )
