"""The model executor: everything between token ids and token ids, over the seam of ``backends/base.py``.

It owns the bound tensors, the caches and the sampler, all allocated once at the engine's limits. Rows are dense; the
caller says which sequence sits in which row and how much of it the cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from ..adapter_format import AdapterFormat
from ..backends.base import Backend, CacheLayout, SamplingRow
from ..engine_format import EngineDirectory
from ..vision.media import PromptMedia
from .adapter_tensors import AdapterTensors
from .checkpoint_weights import WeightSource
from .engine_calls import EngineCall, EngineCalls
from .engine_tensors import EngineTensors, cache_dtype, check_embeddings
from .engine_work import EngineWork, StepObserver
from .executor_start import record_decode_steps, run_every_batch_size
from .mixed_rows import MixedRows, chunk_end, chunk_length
from .row_media import RowMedia

NOT_FINITE = -1  # the id that the sampler gives for logits that are not finite


class ModelExecutor:
    """Runs prefill chunks and decode steps of one engine directory. One thread uses it.

    ``prefill_chunk`` is the most prompt tokens of one engine call, ``join_chunk`` the same while other rows decode.
    ``mixed_positions`` is the most positions (rows times the longest chunk) of a call that holds both; None takes the
    engine's own measure, and an engine that cannot has none. ``score_chunk`` is the most positions of which ``score``
    returns the logits at a time (0: it is not used, and takes no memory). ``source`` says where the weights lie, None
    in the directory.

    :raises EngineDirectoryError: the graph wants an input that this version does not know.
    :raises BackendError: the engine does not load, or there is not enough memory.
    """

    def __init__(
        self,
        directory: EngineDirectory,
        backend: Backend,
        *,
        prefill_chunk: int = 256,
        join_chunk: int = 64,
        mixed_positions: int | None = None,
        score_chunk: int = 0,
        source: WeightSource | None = None,
    ) -> None:
        config = directory.config
        self.limits = limits = config.limits
        self.vocab_size = config.vocab_size
        self.prefill_chunk = min(prefill_chunk, limits.max_input_len)
        self.join_chunk = min(join_chunk, self.prefill_chunk)
        self.score_chunk = min(score_chunk, self.prefill_chunk)
        self.observer: StepObserver | None = None
        self._backend = backend
        layout = CacheLayout(config.kv_layers, cache_dtype(config.kv_cache_dtype))
        source = source or WeightSource.of(directory, None)
        with ExitStack() as undo:
            opened = backend.open_engine(directory.path, cache_layout=layout, weights=source.weights)
            self.engine = undo.enter_context(closing(opened))
            self.embeddings = backend.open_embeddings(
                source.embedding_file, scale=config.embedding_scale, tensor=source.embedding_tensor
            )
            self.cache = backend.allocate_kv_cache(layout, limits.max_batch_size, limits.max_kv_cache_capacity)
            self.engine.bind_cache(self.cache)
            rows = limits.max_batch_size
            self.sampler = backend.allocate_sampler(rows, self.vocab_size)
            capabilities = self.engine.capabilities
            if mixed_positions is None:
                mixed_positions = capabilities.mixed_positions
            self.mixed_positions = mixed_positions if capabilities.mixed_positions else 0
            # A block of positions that see each other is one chunk, however long it is.
            self.most_positions = limits.max_input_len if "attend_end" in self.engine.inputs else self.prefill_chunk
            positions = max(rows, self.most_positions, self.mixed_positions)
            form = AdapterFormat.from_config(config.extra)
            self.adapters = None if form is None else AdapterTensors(backend, self.engine, form, rows)
            self.tensors = EngineTensors(
                backend,
                self.engine,
                config,
                positions=positions,
                rows=rows,
                wanted=max(rows, self.score_chunk),
                adapters=self.adapters,
            )
            check_embeddings(self.embeddings, config)
            self.calls = EngineCalls(
                backend, self.engine, self.tensors, self.embeddings, self.sampler, whole_chunk=self.prefill_chunk
            )
            self.media = RowMedia(backend, self.tensors, config, rows)
            # Token ids and past lengths that the device holds already, as the last decode step left them.
            self._standing: tuple[list[int], list[int]] | None = None
            self._host = np.zeros((5, positions), np.int32)
            undo.pop_all()

    # -- rows --------------------------------------------------------------------------------------------------

    def start_row(
        self, row: int, parameters: SamplingRow, prompt_ids: Sequence[int], media: PromptMedia | None = None
    ) -> None:
        """Seat a sequence, which uses no adapter yet: its sampling state and media; ``prefill`` fills its cache."""
        if self.adapters is not None:
            self.adapters.set_row(row, 0)
        self.sampler.set_row(row, parameters, prompt_ids, len(prompt_ids))
        self.media.start(row, media)
        self._standing = None

    def move_row(self, source: int, destination: int, length: int) -> None:
        """Move a sequence with ``length`` cached positions into another row."""
        self.cache.copy_row(source, destination, length)
        self.sampler.move_row(source, destination)
        if self.adapters is not None:
            self.adapters.move_row(source, destination)
        self.media.move(source, destination)
        self._standing = None

    def logprobs(self, index: int, count: int) -> list[tuple[int, float]]:
        """The chosen token, then the ``count`` most likely of the last draw, as (id, natural log)."""
        return self.sampler.logprobs(index, count)

    # -- steps -------------------------------------------------------------------------------------------------

    def prefill(
        self, row: int, prompt_ids: Sequence[int], start: int, *, joining: bool = False
    ) -> tuple[int, int | None]:
        """One chunk of a prompt from position ``start``; returns (positions cached now, first id after the last chunk).

        ``joining``: other rows wait for their next token meanwhile.

        :raises BackendError: the engine failed or was abandoned by the observer.
        """
        end = chunk_end(start, self.join_chunk if joining else self.prefill_chunk, len(prompt_ids))
        end = self.media.chunk_end(row, start, end, len(prompt_ids))
        chunk = self._padded(end - start, start)
        call = self.calls.get(1, chunk, row, start + chunk)
        with EngineWork(self.observer):
            self._run_chunk(call, prompt_ids[start:end], chunk, start, row)
            if end < len(prompt_ids):
                self._backend.synchronize()
                return end, None
            self.sampler.sample(call.logits, (row,), call.sampled)
            return end, int(self._backend.read_async(call.sampled).wait()[0])

    def score(self, row: int, token_ids: Sequence[int], start: int) -> np.ndarray:
        """Append at most ``score_chunk`` tokens to a row that has ``start`` positions: the logits after each of them.

        float32 [N,V], a copy.

        :raises BackendError: the engine failed or was abandoned by the observer.
        """
        count = len(token_ids)
        chunk = self._padded(count, start)
        call = self.calls.get(1, chunk, row, start + chunk, count)
        with EngineWork(self.observer):
            self._run_chunk(call, token_ids, chunk, start, row, np.arange(count, dtype=np.int32)[None])
            logits: np.ndarray = self._backend.read_async(call.logits).wait()
        return logits.reshape(count, self.vocab_size)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose states the engine gives."""
        return self.tensors.hidden_layers

    def hidden_states(self, layer: int, count: int) -> np.ndarray:
        """The first ``count`` positions of the last ``prefill``, float32 [count,D], a copy; layer 0 is what went in."""
        tensor = self.tensors.bound[f"hidden_states_{layer}" if layer else "inputs_embeds"]
        values: np.ndarray = self._backend.read_async(tensor.prefix((count, tensor.shape[-1]))).wait()
        return values

    def _padded(self, count: int, start: int) -> int:
        return min(chunk_length(count), self.most_positions, self.limits.max_kv_cache_capacity - start)

    def _run_chunk(
        self,
        call: EngineCall,
        token_ids: Sequence[int],
        chunk: int,
        start: int,
        row: int,
        wanted: np.ndarray | None = None,
    ) -> None:
        """One row's chunk of ``chunk`` positions, of which ``token_ids`` are valid."""
        self._standing = None
        count = len(token_ids)
        tokens = self._host[0, :chunk]
        tokens[:count] = token_ids
        tokens[count:] = tokens[count - 1]
        positions = self._host[1, :chunk]
        positions[:] = np.arange(start, start + chunk, dtype=np.int32)
        media = self.media.of(row)
        if media is None:
            self._write(call, 1, chunk, (start,), count, wanted)
            call.run()
            return
        self._write(call, 1, chunk, (start,), count, wanted, self.media.bounds(row, start, chunk))
        gather, rotate, infer = call.parts
        try:
            gather()
            self.media.splice(row, start, start + count, call.views)
            if not self.media.rotate(row, start, chunk, call.views):
                rotate()
            infer()
        finally:
            self.media.settle()

    def decode(self, token_ids: Sequence[int], past_lengths: Sequence[int]) -> list[int]:
        """One step of rows 0..B-1: the id after each of ``token_ids`` [B], NOT_FINITE where the logits are not.

        :raises BackendError: the engine failed or was abandoned by the observer.
        """
        batch = len(token_ids)
        call = self.calls.get(batch, 1, 0, max(past_lengths) + 1)
        standing, self._standing = self._standing, None
        with EngineWork(self.observer):
            if standing != (list(token_ids), list(past_lengths)):
                self._host[0, :batch] = token_ids
                self._host[1, :batch] = past_lengths
                self._host[1, :batch] += self.media.offsets[:batch]
                self._write(call, batch, 1, past_lengths, 1)
            call.step.run()
            sampled: list[int] = self._backend.read_async(call.sampled).wait().tolist()
        self._standing = (sampled, [length + 1 for length in past_lengths])
        return list(sampled)

    def mixes(self, decoding: int, prompt_ids: Sequence[int], start: int) -> bool:
        """Whether the next chunk of a joiner goes into one call with ``decoding`` rows."""
        count = min(self.join_chunk, len(prompt_ids) - start)
        if self.media.of(decoding) is not None:
            return False  # its chunk is put together from more than ids
        return (decoding + 1) * chunk_length(count) <= self.mixed_positions

    def decode_and_prefill(
        self, token_ids: Sequence[int], past_lengths: Sequence[int], prompt_ids: Sequence[int], start: int
    ) -> tuple[list[int], int, int | None]:
        """``decode`` of rows 0..B-1 and ``prefill`` of row B in one call, right padded: what both return.

        :raises BackendError: the engine failed or was abandoned by the observer.
        """
        chunk = prompt_ids[start : start + self.join_chunk]
        end = start + len(chunk)
        rows = MixedRows(list(token_ids), [*past_lengths, start], chunk, end == len(prompt_ids))
        width = chunk_length(len(chunk))
        call = self.calls.get(len(token_ids) + 1, width, 0, max(rows.past_lengths) + width)
        self._standing = None
        with EngineWork(self.observer):
            rows.write(call, self._host, width, self.media.offsets)
            ids = rows.run(call, self.sampler, self._backend)
        return ids[: len(token_ids)], end, ids[len(token_ids)] if rows.completes else None

    def _write(
        self,
        call: EngineCall,
        batch: int,
        chunk: int,
        past: Sequence[int],
        count: int,
        wanted: np.ndarray | None = None,
        attend: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Every row holds ``count`` valid positions after its ``past``; the last gives logits, or those ``wanted``."""
        tokens, positions = self._host[:2, : batch * chunk].reshape(2, batch, chunk)
        lengths = self._host[2:, :batch]
        lengths[0] = past
        lengths[1] = count
        lengths[2] = count - 1
        wanted = lengths[2].reshape(batch, 1) if wanted is None else wanted
        call.write(tokens, positions, lengths[0], lengths[1], wanted, attend)

    # -- the rest ----------------------------------------------------------------------------------------------

    def capture_decode_steps(self) -> bool:
        """Record the decode step of every batch size and length bucket; False where one of them runs eagerly.

        Like ``warm_up``, only while no sequence is seated.
        """
        return record_decode_steps(self)

    def warm_up(self, max_batch_size: int = 0) -> None:
        """Run one prefill chunk and one decode step of each batch size, so that the first request finds all ready.

        ``max_batch_size`` leaves out larger batches than will be used; 0 takes the engine's.

        :raises BackendError: the engine failed.
        """
        run_every_batch_size(self, min(max_batch_size or self.limits.max_batch_size, self.limits.max_batch_size))

    @property
    def engine_details(self) -> dict[str, str]:
        """What the engine's probe found, for diagnostics."""
        return dict(self.engine.capabilities.details)

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()
