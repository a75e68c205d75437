"""Our own engine of the harness: whole requests through ``LLMInferenceRuntime``."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .prompts import prompt_ids
from .session_times import Span, watch_calls, watch_sessions


class Runtime:
    """One engine directory.

    :param engine_directory: what the builder wrote.
    :param backend: name for the backend registry.
    :param cache_bytes: budget of the context cache; 0 is without.
    """

    def __init__(self, engine_directory: str, *, threads: int, backend: str = "auto", cache_bytes: int = 0) -> None:
        self._spans = watch_sessions()
        from edgellm_ros import ContextCacheConfig, LLMInferenceRuntime

        cache = ContextCacheConfig(cache_bytes) if cache_bytes else None
        self._runtime = LLMInferenceRuntime(engine_directory, backend=backend, threads=threads, context_cache=cache)
        self._weight_bytes = weight_bytes(Path(engine_directory))
        self._variant = 0
        self._decoding = watch_calls(self._runtime.rank.executor, "decode")

    def versions(self) -> dict[str, str]:
        """Versions of this package and of the engine library."""
        return {"edgellm_ros": version("edgellm_ros"), "onnxruntime": version("onnxruntime")}

    def decode(self, prompt_tokens: int, tokens: int) -> dict[str, float]:
        """Greedy decoding of ``tokens`` after a prompt: rate, weight traffic and what Python adds to a step."""
        times = self._request(prompt_tokens, tokens)
        seconds = times.last_token - times.first_token
        steps = tokens - 1
        inside = sum(end - start for start, end in self._spans if start >= times.first_token)
        return {
            "decode_rate": steps / seconds,
            "weight_traffic": self._weight_bytes * steps / seconds / 1e9,
            "python_share": 100 * (seconds - inside) / seconds,
            "python_time": 1e6 * (seconds - inside) / steps,
        }

    def batch_decode(self, prompt_tokens: int, tokens: int, sequences: int) -> dict[str, float]:
        """One sequence, then several that arrive together at the scheduler: rates while all of them decode."""
        single = self.decode(prompt_tokens, tokens)["decode_rate"]
        self._spans.clear()
        self._decoding.clear()
        from edgellm_ros import RequestEngine
        from edgellm_ros.runtime.scheduler import RequestEngineConfig

        engine = RequestEngine(self._runtime, RequestEngineConfig(max_batch_size=sequences))
        try:
            # Those that arrive later stay longer; all are there for at least ``tokens`` steps.
            handles = [engine.submit(self._greedy(prompt_tokens, 2 * tokens + 8 * index)) for index in range(sequences)]
            times = [handle.get(600).times[0] for handle in handles]
        finally:
            engine.shutdown()
        start, end = max(t.first_token for t in times), min(t.last_token for t in times)
        steps = _within(self._spans, start, end)
        seconds, inside = end - start, sum(ended - begun for begun, ended in steps)
        calls = sum(ended - begun for begun, ended in _within(self._decoding, start, end))
        rate = sequences * len(steps) / seconds
        return {
            "batch_scaling": rate / single,
            "batch_decode_rate": rate,
            "single_decode_rate": single,
            "batch_python_share": 100 * (seconds - inside) / seconds,
            "batch_python_time": 1e6 * (seconds - inside) / len(steps),
            "batch_session_share": 100 * (seconds - calls) / seconds,
        }

    def join(self, prompt_tokens: int, joiner_tokens: int) -> dict[str, float]:
        """A prompt that joins one sequence which decodes: how long that one waits, and the joiner for its first token.

        ``step_time`` is what a step takes with nobody joining.
        """
        from edgellm_ros import LLMGenerationResponse
        from edgellm_ros.runtime.session import GenerationSession

        rank = self._runtime.rank
        generation = rank.begin_generation(
            self._runtime.prepare(self._greedy(prompt_tokens, 400)), LLMGenerationResponse()
        )
        if generation is None:
            raise RuntimeError(f"the runtime refused the request: {rank.last_refusal}")
        with generation:
            session = GenerationSession(rank, generation)
            session.prime_from_prefill()
            alone = [_seconds(session.advance) for _ in range(16)]
            session.admit_request(self._runtime.prepare(self._greedy(joiner_tokens, 8)), 1, 7)
            joiner = generation.context.sequences[1]
            steps: list[float] = []
            while not joiner.generate_length:
                steps.append(_seconds(session.advance))
        return {
            "longest_step": 1e3 * max(steps),
            "joiner_first_token": 1e3 * sum(steps),
            "step_time": 1e3 * statistics.median(alone),
        }

    def prefill(self, prompt_tokens: int) -> dict[str, float]:
        """Rate from the start of the prompt to its first token."""
        times = self._request(prompt_tokens, 1)
        return {"prefill_rate": prompt_tokens / (times.first_token - times.prefill_start)}

    def prefix_hit(self, prefix_tokens: int, tokens: int) -> dict[str, float]:
        """Milliseconds to the first token of a new prompt, and of one that goes on differently after its prefix."""
        self._variant += 1
        prefix = prompt_ids(prefix_tokens, self._variant)
        seconds = []
        for _ in ("cold", "hit"):
            self._variant += 1
            times = self._run(_greedy([*prefix, *prompt_ids(tokens, self._variant)], 1))
            seconds.append(times.first_token - times.prefill_start)
        cold, hit = seconds
        return {"hit_speedup": cold / hit, "cold_first_token": 1e3 * cold, "hit_first_token": 1e3 * hit}

    def close(self) -> None:
        """Free the engine."""
        self._runtime.close()

    def _greedy(self, prompt_tokens: int, tokens: int) -> Any:
        """A request for exactly ``tokens`` tokens after a prompt that no other has."""
        self._variant += 1
        return _greedy(prompt_ids(prompt_tokens, self._variant), tokens)

    def _request(self, prompt_tokens: int, tokens: int) -> Any:
        self._spans.clear()
        return self._run(self._greedy(prompt_tokens, tokens))

    def _run(self, request: Any) -> Any:
        from edgellm_ros import LLMGenerationResponse

        tokens = request.max_generate_length
        response = LLMGenerationResponse()
        if not self._runtime.handle_request(request, response):
            raise RuntimeError(f"the runtime refused the request: {self._runtime.last_refusal}")
        if len(response.output_ids[0]) != tokens:
            raise RuntimeError(f"the runtime gave {len(response.output_ids[0])} tokens; want {tokens}")
        return response.times[0]


def _greedy(ids: list[int], tokens: int) -> Any:
    from edgellm_ros import LLMGenerationRequest, Request, SamplingParameters

    return LLMGenerationRequest(
        requests=[Request(ignore_eos=True)],
        sampling=SamplingParameters(temperature=0.0),
        max_generate_length=tokens,
        pre_tokenized_input_ids=[ids],
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _within(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    return [(begun, ended) for begun, ended in spans if begun >= start and ended <= end]


def weight_bytes(engine_directory: Path) -> int:
    """Bytes that one token reads: the graph's weights, and the embedding file where the graph's head lives in it."""
    names = [path for path in engine_directory.glob("llm.onnx*") if path.is_file()]
    total = sum(path.stat().st_size for path in names)
    graph = engine_directory / "llm.onnx"
    embedding = engine_directory / "embedding.safetensors"
    if graph.is_file() and embedding.is_file() and b"embedding.safetensors" in graph.read_bytes():
        total += embedding.stat().st_size
    return total


def version(package: str) -> str:
    """The installed version, or the source tree's."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))
