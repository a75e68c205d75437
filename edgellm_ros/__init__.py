"""Language, vision-language and vision-language-action models on the robot's own computer, as a ROS 2 package.

Names are imported on first use, so ``import edgellm_ros`` stays light: no NumPy, no engine library, no ROS.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "LLMInferenceRuntime": "edgellm_ros.runtime.inference_runtime",
    "LLMRankRuntime": "edgellm_ros.runtime.rank_runtime",
    "ModelArtifacts": "edgellm_ros.runtime.artifacts",
    "RequestEngine": "edgellm_ros.runtime.scheduler",
    "RequestEngineConfig": "edgellm_ros.runtime.scheduler",
    "BatchCompatibility": "edgellm_ros.runtime.compatibility",
    "RequestHandle": "edgellm_ros.runtime.scheduler",
    "LLMGenerationRequest": "edgellm_ros.runtime.request",
    "LLMGenerationResponse": "edgellm_ros.runtime.request",
    "Request": "edgellm_ros.runtime.request",
    "Message": "edgellm_ros.runtime.request",
    "SamplingParameters": "edgellm_ros.runtime.request",
    "FinishReason": "edgellm_ros.runtime.request",
    "CacheCommitPolicy": "edgellm_ros.runtime.cache_policy",
    "CacheLookupPolicy": "edgellm_ros.runtime.cache_policy",
    "ContextCacheConfig": "edgellm_ros.runtime.context_cache",
    "StreamChannel": "edgellm_ros.runtime.streaming",
    "StreamChunk": "edgellm_ros.runtime.streaming",
    "Guide": "edgellm_ros.runtime.guide_grammar",
    "Video": "edgellm_ros.vision.processor",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
