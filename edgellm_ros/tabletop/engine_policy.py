"""A built engine as a policy of this tabletop, and as one that answers questions about it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..action.observation import Observation
from ..action.policy_runtime import PolicyRuntime
from ..runtime.inference_runtime import LLMInferenceRuntime
from ..runtime.request import LLMGenerationRequest, LLMGenerationResponse, Message, Request, SamplingParameters
from .cameras import CAMERA_NAMES
from .geometry import Array


class EnginePolicy:
    """Chunks of a ``PolicyRuntime``, one world after the other; ``latencies_ms`` collects what each one took.

    Every chunk gets noise of its own seed: ``seed`` plus the number of chunks so far.
    """

    def __init__(self, runtime: PolicyRuntime, *, seed: int = 5, denoise_steps: int = 0) -> None:
        self.runtime, self.denoise_steps = runtime, denoise_steps
        self.next_seed = seed
        self.latencies_ms: list[float] = []

    def __call__(self, images: Array, joints: Array, texts: list[str]) -> Array:
        """Joint targets [B,16,4] from pictures uint8 [B,2,128,128,3], joints [B,4] and B texts."""
        chunks = []
        for views, state, text in zip(images, joints, texts, strict=True):
            observation = Observation(dict(zip(CAMERA_NAMES, views, strict=True)), state)
            chunk = self.runtime.compute(observation, text, noise_seed=self.next_seed, denoise_steps=self.denoise_steps)
            assert chunk is not None  # nothing cancels here
            self.next_seed += 1
            self.latencies_ms.append(chunk.timings["total_ms"])
            chunks.append(chunk.rows)
        return np.stack(chunks)


def answer(runtime: LLMInferenceRuntime, views: Sequence[Array], question: str, longest: int = 48) -> str:
    """The most likely answer to a question about pictures uint8 [128,128,3]."""
    message = Message.of("user", *views, question)
    request = LLMGenerationRequest(
        requests=[Request(messages=(message,))],
        sampling=SamplingParameters(temperature=0.0),
        max_generate_length=longest,
    )
    response = LLMGenerationResponse()
    runtime.handle_request(request, response)
    return response.output_texts[0].strip()
