"""What a runtime does between requests: it is made ready, keeps system prompts, and is closed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ..backends.base import Backend
from ..errors import MisuseError, Refusal, RefusalCode
from .artifacts import ModelArtifacts, StepSizes
from .context_cache import ContextCacheConfig
from .generation import LONGEST_STEP, DrivingLock, GenerationContext, SteppedGeneration
from .rank_model import RankModel
from .request_checks import check_kinds, check_number

_LOG = logging.getLogger(__name__)


class RankUpkeep(RankModel):
    """A model with the latch that lets one request at a time in; raises as ``RankModel``."""

    def __init__(
        self,
        artifacts: ModelArtifacts,
        backend: Backend | str | None,
        threads: int,
        sizes: StepSizes,
        context_cache: ContextCacheConfig | None,
        lora_weights: Mapping[str, Path | str] | None,
    ) -> None:
        super().__init__(artifacts, backend, threads, sizes, context_cache, lora_weights)
        self._latch = threading.Lock()
        self._driving = DrivingLock()
        self._process = os.getpid()
        self._open: SteppedGeneration | None = None
        self._closed = False
        self.last_refusal: Refusal | None = None

    def gen_and_save_system_prompt_kv_cache(self, prompt: str, lora_weights_name: str = "") -> bool:
        """Run a system prompt, as the template writes it, and keep what later prompts that begin with it need not run.

        True where it is kept, or was already, or is empty. False, with ``last_refusal``, where the context cache is on,
        the adapter is not loaded, or it has no ids or too many. No request may be open.

        :raises BackendError: the engine failed.
        :raises MisuseError: a request is open.
        """
        check_kinds({"prompt": prompt, "lora_weights_name": lora_weights_name}, str)
        with self._driving:
            self._check_idle()
            self.last_refusal = self._reuse.save_system_prompt(prompt, lora_weights_name)
        return self.last_refusal is None

    def capture_decoding_cuda_graph(self) -> bool:
        """Record the decode step of every batch size; False where steps run eagerly. No request may be open.

        With ``EDGELLM_DISABLE_CUDA_GRAPH`` set it does nothing and is True.

        :raises MisuseError: a request is open.
        """
        with self._driving:
            self._check_idle()
            if os.environ.get("EDGELLM_DISABLE_CUDA_GRAPH", "0") not in ("", "0"):
                return True
            return self.executor.capture_decode_steps()

    def warm_up(self, max_batch_size: int = 0) -> None:
        """Run the engine once at each batch size up to ``max_batch_size`` (0: its own). No request may be open.

        :raises BackendError: the engine failed.
        :raises MisuseError: a request is open.
        """
        check_number("max_batch_size", max_batch_size, 0, 1 << 31, integer=True)
        with self._driving:
            self._check_idle()
            self.executor.warm_up(max_batch_size)
            if self.vision is not None:
                self.vision.warm_up()

    def _check_usable(self) -> None:
        if self._closed:
            raise MisuseError("this runtime is closed; make another one.")
        if os.getpid() != self._process:
            raise MisuseError(
                f"this runtime was loaded by process {self._process} and is a copy in process {os.getpid()}, whose "
                "engine has no threads; load it there, or start that process without fork."
            )

    def _check_idle(self) -> None:
        self._check_usable()
        if self._open is not None:
            raise MisuseError("this runtime has an open request; wait for its end.")

    @property
    def open_context(self) -> GenerationContext | None:
        """Rows and unclaimed results of the open request; None while there is none."""
        return self._open.context if self._open is not None else None

    def close(self) -> None:
        """Abort an open request and free the engine; a second call does nothing.

        From any thread: it waits for the end of a step. An engine that does not come back from one is not freed, nor is
        that of another process.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            return
        began = time.monotonic()
        self._abort()
        # Behind the step of the other thread comes a call of its own, which finds out that all is over.
        at_rest = self._driving.settle(max(0.0, LONGEST_STEP - (time.monotonic() - began)))
        self._abort()  # one that was about to begin
        if not at_rest:
            _LOG.warning("an engine step does not end, so its engine could not be freed.")
            return
        if self.vision is not None:
            self.vision.close()
        self._engine.close()

    def _abort(self) -> None:
        if self._open is not None:
            self._open.close(Refusal(RefusalCode.SHUTTING_DOWN, "the runtime was closed."))  # waits for its step
