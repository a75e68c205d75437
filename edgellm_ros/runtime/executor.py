"""The model executor: everything between token ids and token ids, over the seam of ``backends/base.py``.

It owns the bound tensors, the caches and the sampler, all allocated once at the engine's limits. Rows are dense; the
caller says which sequence sits in which row and how much of it the cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..backends.base import Backend, CacheLayout, Captured, DataType, RopeKind, SamplingRow, Tensor
from ..engine_format import EMBEDDING_FILE, EngineDirectory
from ..errors import BackendError, EdgeLLMError, EngineDirectoryError

NOT_FINITE = -1  # the id that the sampler gives for logits that are not finite
WARM_UP_LENGTH = 32  # tokens; enough to touch every kernel of a prefill, a fraction of the time of a whole chunk


class StepObserver(Protocol):
    """Told when the engine starts to work and when it is done; ``step_ended`` may raise to abandon the step."""

    def step_started(self) -> None:
        """The engine starts to work."""
        ...

    def step_ended(self) -> None:
        """It is done.

        :raises StepTimeoutError: it took too long, and what it was for has been ended meanwhile.
        """
        ...


@dataclass(frozen=True)
class _Call:
    """Views and shapes of one (batch, chunk) size; made once and kept."""

    token_ids: Tensor
    positions: Tensor
    past_length: Tensor
    query_length: Tensor
    last_token_index: Tensor
    logits: Tensor  # [B,V]; [R,V] where the logits of R positions of one row are wanted
    sampled: Tensor  # [B]
    prefill: Callable[[], None]  # whole chunks are recorded; the others are of too many sizes
    step: Captured  # decode


class ModelExecutor:
    """Runs prefill chunks and decode steps of one engine directory. One thread uses it.

    ``prefill_chunk`` is the most prompt tokens of one engine call, ``score_chunk`` the most positions of which
    ``score`` returns the logits at a time (0: it is not used, and takes no memory).

    :raises EngineDirectoryError: the graph wants an input that this version does not know.
    :raises BackendError: the engine does not load, or there is not enough memory.
    """

    def __init__(
        self, directory: EngineDirectory, backend: Backend, *, prefill_chunk: int = 256, score_chunk: int = 0
    ) -> None:
        config = directory.config
        self.limits = config.limits
        self.vocab_size = config.vocab_size
        self.prefill_chunk = min(prefill_chunk, config.limits.max_input_len)
        self.score_chunk = min(score_chunk, self.prefill_chunk)
        self.observer: StepObserver | None = None
        self._backend = backend
        layout = CacheLayout(config.kv_layers, _cache_dtype(config.kv_cache_dtype))
        self._engine = backend.open_engine(directory.path, cache_layout=layout)
        self.embeddings = backend.open_embeddings(directory.path / EMBEDDING_FILE, scale=config.embedding_scale)
        self._ropes = {
            kind: RopeKind(kind, tuple(rope.inverse_frequency), rope.scale) for kind, rope in config.rope.items()
        }
        self.cache = backend.allocate_kv_cache(layout, self.limits.max_batch_size, self.limits.max_kv_cache_capacity)
        self._engine.bind_cache(self.cache)
        self._sampler = backend.allocate_sampler(self.limits.max_batch_size, self.vocab_size)
        self._hidden_size = config.hidden_size
        self._tensors = self._allocate()
        self._check_inputs()
        self._calls: dict[tuple[int, int, int, int, int], _Call] = {}
        # Token ids and past lengths that the device holds already, as the last decode step left them.
        self._standing: tuple[list[int], list[int]] | None = None
        self._host = np.zeros((5, max(self.limits.max_batch_size, self.prefill_chunk)), np.int32)

    # -- construction ------------------------------------------------------------------------------------------

    def _allocate(self) -> dict[str, Tensor]:
        rows = self.limits.max_batch_size
        positions = max(rows, self.prefill_chunk)
        wanted = max(rows, self.score_chunk)
        shapes: dict[str, tuple[tuple[int, ...], DataType]] = {
            "inputs_embeds": ((positions, self._hidden_size), DataType.FLOAT32),
            "past_length": ((rows,), DataType.INT32),
            "query_length": ((rows,), DataType.INT32),
            "last_token_index": ((wanted, 1), DataType.INT32),
            "logits": ((wanted, 1, self.vocab_size), DataType.FLOAT32),
        }
        for kind, rope in self._ropes.items():
            shapes[f"rope_cos_{kind}"] = shapes[f"rope_sin_{kind}"] = (
                (positions, len(rope.inverse_frequency)), DataType.FLOAT32,
            )  # fmt: skip
        tensors = {name: self._backend.allocate(shape, dtype) for name, (shape, dtype) in shapes.items()}
        self._token_ids = self._backend.allocate((positions,), DataType.INT32)
        self._positions = self._backend.allocate((positions,), DataType.INT32)
        return tensors

    def _check_inputs(self) -> None:
        names = {*self._engine.inputs, *self._engine.outputs}
        unknown = sorted(names - set(self._tensors))
        if unknown:
            raise EngineDirectoryError(
                f"the graph has {unknown[0]!r}, which this version does not serve; build the engine directory again."
            )
        if "logits" not in self._engine.outputs:
            raise EngineDirectoryError("the graph has no output 'logits'; build the engine directory again.")
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if name in names}
        for name, spec in {**self._engine.inputs, **self._engine.outputs}.items():
            width = self._tensors[name].shape[-1]
            if len(spec.shape) == 3 and spec.shape[2] not in (-1, width):
                raise EngineDirectoryError(
                    f"{name!r} of the graph holds {spec.shape[2]} numbers a position and config.json wants {width}; "
                    "build the engine directory again."
                )
        rows, width = self.embeddings.shape
        if rows < self.vocab_size or width != self._hidden_size:
            raise EngineDirectoryError(
                f"{EMBEDDING_FILE} holds [{rows}, {width}] and config.json wants [{self.vocab_size}, "
                f"{self._hidden_size}]; build the engine directory again."
            )
        for name, tensor in self._tensors.items():
            self._engine.bind(name, tensor)

    # -- rows --------------------------------------------------------------------------------------------------

    def start_row(self, row: int, parameters: SamplingRow, prompt_ids: Sequence[int]) -> None:
        """Seat a sequence: its sampling state; its cache is filled by ``prefill``."""
        self._sampler.set_row(row, parameters, prompt_ids, len(prompt_ids))

    def move_row(self, source: int, destination: int, length: int) -> None:
        """Move a sequence with ``length`` cached positions into another row."""
        self.cache.copy_row(source, destination, length)
        self._sampler.move_row(source, destination)

    def set_mask(self, row: int, allowed: np.ndarray) -> None:
        """Allow a row only these tokens, int32 [ceil(V/32)], until another mask; it moves with the row."""
        self._sampler.set_mask(row, allowed)

    def logprobs(self, index: int, count: int) -> list[tuple[int, float]]:
        """The chosen token, then the ``count`` most likely of the last draw, as (id, natural log)."""
        return self._sampler.logprobs(index, count)

    # -- steps -------------------------------------------------------------------------------------------------

    def prefill(self, row: int, prompt_ids: Sequence[int], start: int) -> tuple[int, int | None]:
        """One chunk of a prompt from position ``start``; returns (positions cached now, first id after the last chunk).

        :raises BackendError: the engine failed or was abandoned by the observer.
        """
        end = min(start + self.prefill_chunk, len(prompt_ids))
        chunk = self._padded(end - start, start)
        call = self._call(1, chunk, row, start + chunk)
        with _Work(self.observer):
            self._run_chunk(call, prompt_ids[start:end], chunk, start)
            if end < len(prompt_ids):
                self._backend.synchronize()
                return end, None
            self._sampler.sample(call.logits, (row,), call.sampled)
            return end, int(self._backend.read_async(call.sampled).wait()[0])

    def score(self, row: int, token_ids: Sequence[int], start: int) -> np.ndarray:
        """Append at most ``score_chunk`` tokens to a row that has ``start`` positions: the logits after each of them.

        float32 [N,V], a copy.

        :raises BackendError: the engine failed or was abandoned by the observer.
        """
        count = len(token_ids)
        chunk = self._padded(count, start)
        call = self._call(1, chunk, row, start + chunk, count)
        with _Work(self.observer):
            self._run_chunk(call, token_ids, chunk, start, np.arange(count, dtype=np.int32)[None])
            logits: np.ndarray = self._backend.read_async(call.logits).wait()
        return logits.reshape(count, self.vocab_size)

    def _padded(self, count: int, start: int) -> int:
        return min(_bucket(count), self.prefill_chunk, self.limits.max_kv_cache_capacity - start)

    def _run_chunk(
        self, call: _Call, token_ids: Sequence[int], chunk: int, start: int, wanted: np.ndarray | None = None
    ) -> None:
        """One row's chunk of ``chunk`` positions, of which ``token_ids`` are valid."""
        self._standing = None
        count = len(token_ids)
        tokens = self._host[0, :chunk]
        tokens[:count] = token_ids
        tokens[count:] = tokens[count - 1]
        positions = self._host[1, :chunk]
        positions[:] = np.arange(start, start + chunk, dtype=np.int32)
        call.token_ids.write(tokens.reshape(1, chunk))
        call.positions.write(positions.reshape(1, chunk))
        self._write_lengths(call, 1, (start,), count, wanted)
        call.prefill()

    def decode(self, token_ids: Sequence[int], past_lengths: Sequence[int]) -> list[int]:
        """One step of rows 0..B-1: the id after each of ``token_ids`` [B], NOT_FINITE where the logits are not.

        :raises BackendError: the engine failed or was abandoned by the observer.
        """
        call = self._call(len(token_ids), 1, 0, max(past_lengths) + 1)
        standing, self._standing = self._standing, None
        with _Work(self.observer):
            if standing != (list(token_ids), list(past_lengths)):
                self._write_step(call, token_ids, past_lengths)
            call.step.run()
            sampled: list[int] = self._backend.read_async(call.sampled).wait().tolist()
        self._standing = (sampled, [length + 1 for length in past_lengths])
        return list(sampled)

    def _write_step(self, call: _Call, token_ids: Sequence[int], past_lengths: Sequence[int]) -> None:
        batch = len(token_ids)
        tokens = self._host[0, :batch]
        tokens[:] = token_ids
        positions = self._host[1, :batch]
        positions[:] = past_lengths
        call.token_ids.write(tokens.reshape(batch, 1))
        call.positions.write(positions.reshape(batch, 1))
        self._write_lengths(call, batch, past_lengths, 1)

    def _write_lengths(
        self, call: _Call, batch: int, past: Sequence[int], count: int, wanted: np.ndarray | None = None
    ) -> None:
        """Every row holds ``count`` valid positions after its ``past``; the last gives logits, or those ``wanted``."""
        values = self._host[2:, :batch]
        values[0] = past
        values[1] = count
        values[2] = count - 1
        call.past_length.write(values[0])
        call.query_length.write(values[1])
        if wanted is None:
            wanted = values[2].reshape(batch, 1)
        call.last_token_index.write(wanted)

    def _call(self, batch: int, chunk: int, first_row: int, positions: int, wanted: int = 1) -> _Call:
        key = (batch, chunk, first_row, self._engine.length_bucket(positions), wanted)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._make_call(*key)
        return call

    def _make_call(self, batch: int, chunk: int, first_row: int, bucket: int, wanted: int) -> _Call:
        key = (batch, chunk, first_row, bucket, wanted)
        token_ids = self._token_ids.prefix((batch, chunk))
        positions = self._positions.prefix((batch, chunk))
        shapes: dict[str, tuple[int, ...]] = {
            "inputs_embeds": (batch, chunk, self._hidden_size),
            "past_length": (batch,),
            "query_length": (batch,),
            "last_token_index": (batch, wanted),
            "logits": (batch, wanted, self.vocab_size),
        }
        ropes: list[tuple[RopeKind, Tensor, Tensor]] = []
        for kind, rope in self._ropes.items():
            shape = (batch, chunk, len(rope.inverse_frequency))
            names = (f"rope_cos_{kind}", f"rope_sin_{kind}")
            shapes.update(dict.fromkeys(names, shape))
            if all(name in self._tensors for name in names):
                cosine, sine = (self._tensors[name].prefix(shape) for name in names)
                ropes.append((rope, cosine, sine))
        shapes = {name: shape for name, shape in shapes.items() if name in self._tensors}
        embeds = self._tensors["inputs_embeds"].prefix(shapes["inputs_embeds"])
        logits = self._tensors["logits"].prefix((batch * wanted, self.vocab_size))
        past_length = self._length_tensor("past_length", (batch,))
        sampled = self._token_ids.prefix((batch,))  # where the next step looks for its ids
        backend, engine, table, sampler = self._backend, self._engine, self.embeddings, self._sampler
        rows = range(batch)

        def run_engine() -> None:
            backend.gather_embeddings(table, token_ids, embeds)
            for rope, cosine, sine in ropes:
                backend.rope_tables(rope, positions, cosine, sine)
            engine.run(shapes, first_row, bucket)

        def decode() -> None:
            """One token further, all of it on the device, and ready for the step after it."""
            run_engine()
            sampler.sample(logits, rows, sampled)
            backend.advance((positions, past_length))

        return _Call(
            token_ids=token_ids,
            positions=positions,
            past_length=past_length,
            query_length=self._length_tensor("query_length", (batch,)),
            last_token_index=self._length_tensor("last_token_index", (batch, wanted)),
            logits=logits,
            sampled=sampled,
            prefill=backend.capture(("prefill", *key), run_engine).run if chunk == self.prefill_chunk else run_engine,
            step=backend.capture(("decode", *key), decode),
        )

    def _length_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensors.get(name)
        # A graph without the input: the values go nowhere.
        return (tensor or self._backend.allocate(shape, DataType.INT32)).prefix(shape)

    # -- the rest ----------------------------------------------------------------------------------------------

    def capture_decode_steps(self) -> bool:
        """Record the decode step of every batch size and length bucket; False where one of them runs eagerly.

        Like ``warm_up``, only while no sequence is seated.
        """
        capacity = self.limits.max_kv_cache_capacity
        buckets = [self._engine.length_bucket(1)]
        while 0 < buckets[-1] < capacity:
            buckets.append(self._engine.length_bucket(buckets[-1] + 1))
        for row in range(self.limits.max_batch_size):
            self.start_row(row, SamplingRow(), [0])
        recorded = True
        try:
            for batch in range(1, self.limits.max_batch_size + 1):
                for bucket in buckets:
                    self.decode([0] * batch, [max(0, bucket - 1)] * batch)
                    recorded &= self._call(batch, 1, 0, bucket).step.record()
        except BackendError:
            return False
        return recorded

    def warm_up(self, max_batch_size: int = 0) -> None:
        """Run one prefill chunk and one decode step of each batch size, so that the first request finds all ready.

        ``max_batch_size`` leaves out larger batches than will be used; 0 takes the engine's.

        Leaves nothing behind but garbage in cache slots that every sequence overwrites before it reads them.

        :raises BackendError: the engine failed.
        """
        greedy = SamplingRow()
        rows = min(max_batch_size or self.limits.max_batch_size, self.limits.max_batch_size)
        length = min(WARM_UP_LENGTH, self.prefill_chunk, self.limits.max_kv_cache_capacity - 2)
        for row in range(rows):
            self.start_row(row, greedy, [0] * (length if row == 0 else 1))
            self.prefill(row, [0] * (length if row == 0 else 1), 0)
        for batch in range(1, rows + 1):
            self.decode([0] * batch, [length, *[1] * (batch - 1)])

    @property
    def engine_details(self) -> dict[str, str]:
        """What the engine's probe found, for diagnostics."""
        return dict(self._engine.capabilities.details)

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()


class _Work:
    """Tells the observer about engine work, and turns whatever goes wrong in it into a BackendError."""

    __slots__ = ("_observer",)

    def __init__(self, observer: StepObserver | None) -> None:
        self._observer = observer

    def __enter__(self) -> None:
        if self._observer is not None:
            self._observer.step_started()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._observer is not None:
            self._observer.step_ended()
        if isinstance(error, Exception) and not isinstance(error, EdgeLLMError):
            raise BackendError(f"the engine failed: {type(error).__name__}: {error}") from error


def _bucket(count: int) -> int:
    """The chunk length for ``count`` tokens: few different shapes, little padding."""
    return 1 << (count - 1).bit_length() if count <= 16 else -(-count // 16) * 16


def _cache_dtype(name: str) -> DataType:
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    try:
        return DataType(names.get(name, name))
    except ValueError:
        raise EngineDirectoryError(
            f"config.json: kv_cache_dtype is {name!r}; want fp32, fp16, bf16 or int8: build the engine directory again."
        ) from None
