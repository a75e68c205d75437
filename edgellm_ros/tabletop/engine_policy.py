"""A built engine as a policy of this tabletop, and as one that answers questions about it."""

from __future__ import annotations

from collections.abc import Sequence

from ..action.chunk import ActionChunk
from ..action.observation import Observation
from ..action.policy_runtime import PolicyRuntime
from ..action.solver import RealTimeChunking
from ..runtime.inference_runtime import LLMInferenceRuntime
from ..runtime.request import LLMGenerationRequest, LLMGenerationResponse, Message, Request, SamplingParameters
from ..vision.pruner import VisualPrunerConfig
from .cameras import CAMERA_NAMES
from .geometry import Array


class EnginePolicy:
    """Chunks of a ``PolicyRuntime``; ``latencies_ms`` collects what each one took.

    Every chunk gets noise of its own seed: ``seed`` plus the number of chunks since ``restart``.
    """

    def __init__(
        self,
        runtime: PolicyRuntime,
        *,
        seed: int = 5,
        denoise_steps: int = 0,
        visual_pruner: VisualPrunerConfig | None = None,
    ) -> None:
        self.runtime, self.denoise_steps, self.visual_pruner = runtime, denoise_steps, visual_pruner
        self.horizon = runtime.manifest.horizon
        self.latencies_ms: list[float] = []
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Count seeds from here on: an episode gives the same chunks whatever was run before it."""
        self.next_seed = seed

    def chunk(
        self,
        views: Array,
        joints: Array,
        text: str,
        stamp: int,
        chunking: RealTimeChunking | None = None,
        committed: Array | None = None,
    ) -> ActionChunk:
        """See ``ChunkSource``."""
        chunk = self.runtime.compute(
            Observation(dict(zip(CAMERA_NAMES, views, strict=True)), joints, stamp),
            text,
            noise_seed=self.next_seed,
            denoise_steps=self.denoise_steps,
            chunking=chunking,
            committed=committed,
            visual_pruner=self.visual_pruner,
        )
        assert chunk is not None  # nothing cancels here
        self.next_seed += 1
        self.latencies_ms.append(chunk.timings["total_ms"])
        return chunk


def answer(
    runtime: LLMInferenceRuntime,
    views: Sequence[Array],
    question: str,
    *,
    longest: int = 48,
    visual_pruner: VisualPrunerConfig | None = None,
) -> str:
    """The most likely answer to a question about pictures uint8 [128,128,3]."""
    message = Message.of("user", *views, question)
    request = LLMGenerationRequest(
        requests=[Request(messages=(message,))],
        sampling=SamplingParameters(temperature=0.0),
        max_generate_length=longest,
        visual_pruner=visual_pruner,
    )
    response = LLMGenerationResponse()
    runtime.handle_request(request, response)
    return response.output_texts[0].strip()
