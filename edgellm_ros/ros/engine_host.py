"""One loaded engine with its worker thread: what configuring makes and cleaning up frees."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.base import Backend
from ..backends.registry import graph_libraries
from ..engine_format import GRAPH_FILE, PLAN_FILE, EngineDirectory, open_engine_directory
from ..errors import EdgeLLMError, EngineDirectoryError, MisuseError, RefusalCode
from ..json_values import shown
from .memory import spare_memory
from .parameters import EngineSettings, FakeSettings, Settings

if TYPE_CHECKING:
    import numpy as np

    from ..runtime.inference_runtime import LLMInferenceRuntime
    from ..runtime.request import LLMGenerationRequest
    from ..runtime.scheduler import RequestEngine, RequestHandle
    from ..runtime.streaming import StreamChannel
    from .generation_run import GenerationRun, Outputs
    from .policy_host import PolicyHost
    from .policy_run import PolicyRun
    from .prompt_request import PromptRequest

MAX_BATCH_SIZE = 1  # the prompt topic runs one request at a time
CLOSE_TIMEOUT = 1.0  # s that a running step has to end


@dataclass(frozen=True)
class EngineFacts:
    """What is loaded, for logs, reports and diagnostics; ``load_time`` in s."""

    model: str
    precision: str
    backend: str
    threads: int
    fingerprint: str
    directory: str
    load_time: float

    @property
    def summary(self) -> str:
        """One clause for a log line."""
        return f"{self.model} ({self.precision}) on {self.backend} with {self.threads} threads"

    def report_fields(self) -> dict[str, str]:
        """What a report repeats."""
        return {
            "model": self.model,
            "precision": self.precision,
            "backend": self.backend,
            "fingerprint": self.fingerprint,
        }


class EngineHost:
    """Owns a runtime and the ``RequestEngine`` whose thread drives it. ``submit`` may be called from any thread."""

    def __init__(
        self,
        runtime: LLMInferenceRuntime | None,
        engine: RequestEngine | None,
        facts: EngineFacts,
        rest: ExitStack,
        policy: PolicyHost | None = None,
    ) -> None:
        """``runtime`` and ``engine`` are of a language model that answers; ``policy`` acts. One of them is there."""
        self._runtime = runtime
        self._engine = engine
        self._rest = rest
        self.facts = facts
        self.policy = policy
        # Both are set by the node that has the policy's topics.
        self.act: Callable[[PromptRequest, Outputs], PolicyRun] | None = None
        self.leave: Callable[[], None] = _nothing  # stops what moves, where no task takes a task's place

    @classmethod
    def load(cls, settings: Settings) -> EngineHost:
        """Load and warm up an engine; on failure everything that was taken is given back.

        :raises EdgeLLMError: the directory, the memory or the backend does not allow it, in one sentence.
        """
        # Imported here: the node answers its parameters before numpy and the engine library are needed.
        from .policy_host import PolicyHost, has_policy

        start = time.monotonic()
        with ExitStack() as stack:
            directory = open_engine_directory(directory_of(settings.engine, settings.fake, stack))
            spare = spare_memory(directory, settings.engine.memory_reserve_mb)
            with ExitStack() as undo:
                policy = None
                if has_policy(directory.path):
                    policy = PolicyHost.load(directory.path, settings)
                    undo.callback(policy.close)
                # A policy that reasons holds its language model itself; a second copy would fill the memory.
                answers = holds_language_model(directory) and (policy is None or policy.manifest.driving is None)
                runtime, engine = _load_text(directory, settings, spare, undo) if answers else (None, None)
                undo.pop_all()
            if runtime is not None:
                backend = runtime.rank.backend
            elif policy is not None:
                backend = policy.runtime.backend
            else:
                raise EngineDirectoryError(
                    f"{directory.path} holds neither a language model nor a policy; build it again."
                )
            facts = EngineFacts(
                model=directory.config.model if policy is None else policy.manifest.policy,
                precision=directory.manifest.precision,
                backend=backend.name,
                threads=getattr(backend, "threads", 1),  # not part of the seam: a GPU has none
                fingerprint=directory.manifest.fingerprint,
                directory=str(directory.path),
                load_time=time.monotonic() - start,
            )
            return cls(runtime, engine, facts, stack.pop_all(), policy)

    def count_control_tokens(self, text: str) -> int:
        """How many control tokens of this model are written in ``text``."""
        return 0 if self._runtime is None else self._runtime.tokenizer.count_control_tokens(text)

    @property
    def takes_images(self) -> bool:
        """Whether prompts are answered with images."""
        return self._runtime is not None and self._runtime.rank.vision is not None

    def token_boxes(self, height: int, width: int) -> np.ndarray:
        """Where in an image of this size each of its tokens looks, as fractions; see ``vision.token_boxes``."""
        from ..vision.token_boxes import token_boxes

        vision = None if self._runtime is None else self._runtime.rank.vision
        if vision is None:
            raise MisuseError("the engine takes no images.")
        return token_boxes(vision.processor, height, width)

    @property
    def healthy(self) -> bool:
        """False while a step is over its time."""
        return self._engine is None or self._engine.healthy

    def make_run(self, request: PromptRequest, outputs: Outputs) -> GenerationRun | PolicyRun:
        """What answers a prompt, or does it: by ``action.on_prompt`` where the engine can do both.

        :raises EdgeLLMError: the engine cannot do what the parameter says.
        """
        from .generation_run import GenerationRun

        wish = request.settings.action.on_prompt
        if wish == "auto":
            question = request.prompt.rstrip().endswith("?")
            wish = "act" if self.policy is not None and (self._engine is None or not question) else "answer"
        if wish == "act" and self.act is not None:
            return self.act(request, outputs)
        self.leave()
        if wish == "act" or self._engine is None:
            able = "answers and does not act" if self.policy is None else "acts and does not answer"
            raise EdgeLLMError(
                f"action.on_prompt is {request.settings.action.on_prompt}; this engine {able}: set it to auto.",
                RefusalCode.UNSUPPORTED,
            )
        return GenerationRun(request, self, outputs)

    def submit(self, request: LLMGenerationRequest, channel: StreamChannel) -> RequestHandle:
        """Hand a request to the worker.

        :raises EdgeLLMError: it was refused; the error says why.
        """
        if self._engine is None:
            raise MisuseError("this engine has no language model that answers; it acts.")
        return self._engine.submit(request, channel)

    @property
    def _backends(self) -> list[Backend]:
        """Of the language model, then of the policy."""
        runtimes = (self._runtime and self._runtime.rank, self.policy and self.policy.runtime)
        return [runtime.backend for runtime in runtimes if runtime]

    def memory(self) -> Mapping[str, int]:
        """Bytes by kind, as the backend counts them."""
        return {} if not self._backends else self._backends[0].memory()

    def libraries(self) -> Mapping[str, str]:
        """Which library runs which graph, on a backend that has several."""
        return {name: text for backend in self._backends for name, text in graph_libraries(backend).items()}

    def context_cache(self) -> Mapping[str, int]:
        """What the context cache holds and has saved; empty where it is off."""
        metrics = None if self._runtime is None else self._runtime.rank.get_context_cache_metrics()
        if metrics is None:
            return {}
        return {
            "bytes": metrics.current_bytes,
            "budget_bytes": metrics.budget_bytes,
            "hits": metrics.hit_sequences,
            "misses": metrics.no_reusable_prefix_plans,
            "reused_tokens": metrics.reused_tokens,
            "evicted_blocks": metrics.evicted_records,
            "failed_copies": metrics.failed_copies,
        }

    def close(self) -> bool:
        """Stop the worker and free the engine; False when a step does not return, so that nothing could be freed."""
        from ..runtime.scheduler import ShutdownMode

        with self._rest:
            if self._engine is not None and not self._engine.shutdown(ShutdownMode.CANCEL, CLOSE_TIMEOUT):
                return False
            if self._runtime is not None:
                self._runtime.close()
            if self.policy is not None:
                self.policy.close()
        return True


def holds_language_model(directory: EngineDirectory) -> bool:
    """Whether there is a graph of a language model; the fake backend needs none."""
    graphs = (directory.path / name for name in (GRAPH_FILE, PLAN_FILE))
    return directory.manifest.lowering == "fake" or any(graph.is_file() for graph in graphs)


def _load_text(
    directory: EngineDirectory, settings: Settings, spare: int | None, undo: ExitStack
) -> tuple[LLMInferenceRuntime, RequestEngine]:
    """The language model and its worker; ``undo`` closes what was taken."""
    from ..runtime.context_cache import ContextCacheConfig
    from ..runtime.inference_runtime import LLMInferenceRuntime
    from ..runtime.scheduler import RequestEngine, RequestEngineConfig

    budget = settings.cache.budget_mb << 20
    runtime = LLMInferenceRuntime(
        directory.path,
        backend=settings.engine.backend,
        threads=settings.engine.threads,
        context_cache=ContextCacheConfig(budget if spare is None else min(budget, spare))
        if settings.cache.enabled
        else None,
    )
    undo.callback(runtime.close)
    if settings.engine.warmup:
        runtime.warm_up(MAX_BATCH_SIZE)
    config = RequestEngineConfig(max_batch_size=MAX_BATCH_SIZE, step_timeout=settings.engine.step_timeout)
    return runtime, RequestEngine(runtime, config)


def directory_of(engine: EngineSettings, fake: FakeSettings, stack: ExitStack) -> Path:
    """The engine directory; a temporary one with the fake's script where the fake backend has none."""
    if engine.directory:
        try:
            return Path(engine.directory).expanduser()
        except RuntimeError:
            raise EngineDirectoryError(
                f"engine.directory is {shown(engine.directory)}, and nobody of that name has a home here; write the "
                "whole path."
            ) from None
    if engine.backend != "fake":
        raise EngineDirectoryError(
            "engine.directory is empty; want an engine directory: make one with 'edgellm build' and set the parameter."
        )
    from ..backends.fake import FakeMode, FakeScript, Fault, write_fake_engine_directory

    script = FakeScript(
        answers=(fake.answer or " ",),
        mode=FakeMode.SCRIPTED if fake.answer else FakeMode.ECHO,
        step_latency=fake.step_latency,
        fault=Fault(fake.fault),
        fault_step=fake.fault_step,
    )
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgellm-fake-", ignore_cleanup_errors=True))
    return write_fake_engine_directory(Path(folder) / "engine", script)


def _nothing() -> None:
    """For an engine that moves nothing."""
