"""Our own engine of the harness: whole requests through ``LLMInferenceRuntime``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .prompts import prompt_ids
from .session_times import watch_sessions


class Runtime:
    """One engine directory.

    :param engine_directory: what the builder wrote.
    :param backend: name for the backend registry.
    """

    def __init__(self, engine_directory: str, *, threads: int, backend: str = "auto") -> None:
        self._spans = watch_sessions()
        from edgellm_ros import LLMInferenceRuntime

        self._runtime = LLMInferenceRuntime(engine_directory, backend=backend, threads=threads)
        self._weight_bytes = weight_bytes(Path(engine_directory))
        self._variant = 0

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

    def prefill(self, prompt_tokens: int) -> dict[str, float]:
        """Rate from the start of the prompt to its first token."""
        times = self._request(prompt_tokens, 1)
        return {"prefill_rate": prompt_tokens / (times.first_token - times.prefill_start)}

    def close(self) -> None:
        """Free the engine."""
        self._runtime.close()

    def _request(self, prompt_tokens: int, tokens: int) -> Any:
        from edgellm_ros import LLMGenerationRequest, LLMGenerationResponse, Request, SamplingParameters

        self._variant += 1
        self._spans.clear()
        request = LLMGenerationRequest(
            requests=[Request(ignore_eos=True)],
            sampling=SamplingParameters(temperature=0.0),
            max_generate_length=tokens,
            pre_tokenized_input_ids=[prompt_ids(prompt_tokens, self._variant)],
        )
        response = LLMGenerationResponse()
        if not self._runtime.handle_request(request, response):
            raise RuntimeError(f"the runtime refused the request: {self._runtime.last_refusal}")
        if len(response.output_ids[0]) != tokens:
            raise RuntimeError(f"the runtime gave {len(response.output_ids[0])} tokens; want {tokens}")
        return response.times[0]


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
