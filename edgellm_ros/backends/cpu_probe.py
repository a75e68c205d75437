"""What a loaded engine can really do, found by running it on a few invented tokens.

The same five tokens are run at once, then in ragged chunks in two rows, the last one alone as in decoding. Whatever
the graph or the library gets wrong there (an ignored ``past_length``, padding that leaks, a cache that is not written
in place) changes the last logits about as much as another context does, and that is the yardstick.
"""

from __future__ import annotations

import numpy as np
import onnxruntime

from ..errors import BackendError
from .base import DataType, EngineCapabilities
from .cpu_engine import CPUEngine
from .engine_tensors import is_language_model
from .host_tensor import HostTensor, aligned_zeros
from .integer_probe import check_integer_products
from .onnx_bytes import FLOAT, INT32, one_node_model
from .probe_tokens import CAPACITY, ProbeTokens, Row, allowed_error

WINDOW_KEYS = "sliding_window"  # graph metadata: how many keys, itself included, a query of a windowed layer sees
WINDOW_ATTRIBUTE = "local_window_size"  # graph metadata: the attribute that was written for it
_MIXED_POSITIONS = 16  # measured at eight bits on two cores: (4,2) takes 0.73 of (3,1) and (1,2), (4,4) 0.95, (4,8) 1.4


def probe(engine: CPUEngine) -> EngineCapabilities:
    """Run the engine and say what it can do.

    :raises BackendError: its numbers cannot be relied on.
    """
    details = {"onnxruntime": str(onnxruntime.__version__)}
    window = _probe_window(engine, details)
    check_integer_products(engine.metadata, details)
    ragged = False
    if is_language_model(engine.inputs, engine.outputs):
        ragged = _LanguageProbe(engine).run(details)
    return EngineCapabilities(
        ragged_chunks=ragged,
        mixed_positions=_MIXED_POSITIONS if ragged else 0,
        interval_mask="attend_start" in engine.inputs and "attend_end" in engine.inputs,
        tree_mask="tree_mask" in engine.inputs,
        capture=True,
        cache_dtypes=(engine.cache_layout.dtype,),
        window=window,
        details=details,
    )


class _LanguageProbe:
    """Five tokens in two contexts, and the tensors to run them with."""

    def __init__(self, engine: CPUEngine) -> None:
        self._engine = engine
        self._tokens = ProbeTokens(engine.inputs["inputs_embeds"].shape[2])
        self._ragged_input = "query_length" in engine.inputs
        self._cache = engine.new_cache(0, 0)
        self._padding_written = False

    def run(self, details: dict[str, str]) -> bool:
        """True when rows of one call may hold different numbers of positions.

        :raises BackendError: not even one row's chunks give what they give together.
        """
        engine = self._engine
        try:
            if self._ragged_input:
                whole = self._last_logits([[(0, 0, 5), (1, 0, 5)]])
            else:  # not every engine takes two rows of several positions at once
                whole = np.concatenate([self._last_logits([[(context, 0, 5)]]) for context in (0, 1)])
            if not np.isfinite(whole).all():
                raise BackendError("its logits are not finite")
            allowed = allowed_error(whole[0], whole[1])
            if self._ragged_input:
                parts = self._last_logits([[(0, 0, 3), (0, 0, 2)], [(0, 3, 4), (0, 2, 4)], [(0, 4, 5), (0, 4, 5)]])
                error = float(np.linalg.norm(parts - whole[0], axis=1).max())
                details["ragged_chunk_error"] = f"{error:.2e} of {allowed:.2e}"
                if error <= allowed and not self._padding_written:
                    return True
            parts = self._last_logits([[(0, 0, 3)], [(0, 3, 4)], [(0, 4, 5)]])
            error = float(np.linalg.norm(parts[0] - whole[0]))
            details["chunk_error"] = f"{error:.2e} of {allowed:.2e}"
            if error > allowed:
                raise BackendError("a prompt in chunks gives other logits than the same prompt at once")
        except BackendError as error:
            raise BackendError(
                f"the probe of this engine failed under onnxruntime {onnxruntime.__version__}: {error}; "
                "build the engine directory again, or install another version of onnxruntime."
            ) from None
        finally:
            engine.unbind()
        return False

    def _last_logits(self, calls: list[list[Row]]) -> np.ndarray:
        """Logits [B, V] of the last position after ``calls``; each has (context, start, end) for every row."""
        engine = self._engine
        self._cache = engine.new_cache(len(calls[0]), CAPACITY)
        engine.bind_cache(self._cache)
        logits = np.empty(0, dtype=np.float32)
        for rows in calls:
            logits = self._call(rows)
        return logits

    def _call(self, rows: list[Row]) -> np.ndarray:
        engine = self._engine
        shapes = {}
        for name, values in self._tokens.inputs(engine.inputs, rows).items():
            array = aligned_zeros(values.shape, values.dtype)
            array[...] = values
            engine.bind(name, HostTensor(array, engine.inputs[name].dtype))
            shapes[name] = array.shape
        vocab_size = engine.outputs["logits"].shape[2]
        logits = aligned_zeros((len(rows), 1, vocab_size), np.dtype(np.float32))
        shapes["logits"] = logits.shape
        engine.bind("logits", HostTensor(logits, DataType.FLOAT32))
        engine.run(shapes)
        # Padding that was written hides behind the causal mask, until it runs over the end of a cache.
        ends = enumerate(end for _, _, end in rows)
        self._padding_written |= any(array[row, :, end:].any() for row, end in ends for array in self._cache.arrays)
        return logits[:, 0]


def _probe_window(engine: CPUEngine, details: dict[str, str]) -> int:
    """Keys that a windowed layer of this graph sees; 0 where the graph has none.

    :raises BackendError: the installed library counts a window otherwise than the graph was built for.
    """
    metadata = engine.metadata
    if WINDOW_KEYS not in metadata:
        return 0
    try:
        wanted, attribute = int(metadata[WINDOW_KEYS]), int(metadata[WINDOW_ATTRIBUTE])
    except (KeyError, ValueError):
        raise BackendError(
            f"the graph's metadata {WINDOW_KEYS!r} and {WINDOW_ATTRIBUTE!r} are no two whole numbers; "
            "build the engine directory again."
        ) from None
    seen = attribute + keys_in_window(4) - 4
    details["window_keys"] = str(seen)
    if seen != wanted:
        raise BackendError(
            f"onnxruntime {onnxruntime.__version__} lets a query of this graph see {seen} keys; the model wants "
            f"{wanted}: build the engine directory again with this version of onnxruntime."
        )
    return wanted


def keys_in_window(attribute: int) -> int:
    """How many of ten keys the last of ten queries sees under ``local_window_size=attribute``; versions differ."""
    keys, size = 10, 16
    model = one_node_model(
        "GroupQueryAttention",
        "com.microsoft",
        {"num_heads": 1, "kv_num_heads": 1, "local_window_size": attribute},
        {
            "query": (FLOAT, (1, keys, size)),
            "key": (FLOAT, (1, keys, size)),
            "value": (FLOAT, (1, keys, size)),
            "last": (INT32, (1,)),
            "total": (INT32, (1,)),
        },
        {
            "output": (FLOAT, (1, keys, size)),
            "present_key": (FLOAT, (1, 1, keys, size)),
            "present_value": (FLOAT, (1, 1, keys, size)),
        },
        node_inputs=("query", "key", "value", "", "", "last", "total"),
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    zeros = np.zeros((1, keys, size), dtype=np.float32)  # equal scores: a key that is seen has an equal share
    value = np.eye(keys, size, dtype=np.float32)[None]
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        (output,) = session.run(
            ["output"],
            {
                "query": zeros,
                "key": zeros,
                "value": value,
                "last": np.array([keys - 1], dtype=np.int32),
                "total": np.array([keys], dtype=np.int32),
            },
        )
    except Exception as error:  # ONNX Runtime's exceptions share no base but this
        raise BackendError(f"the sliding-window probe does not run: {error}") from error
    return int(np.count_nonzero(np.asarray(output)[0, -1] > 1e-6))
