"""One prompt on its way: what it was asked with, what became of it, and the single place that can end it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ..errors import Refusal, RefusalCode
from ..runtime.request import FinishReason, LLMGenerationResponse, SequenceTimes
from .images import RequestImages
from .parameters import Settings
from .report import Report, Timings

if TYPE_CHECKING:
    from ..runtime.scheduler import RequestHandle
    from ..vision.pruner import PruningReport
    from .policy_run import TaskHandle

# Part of what is said to the model, so private as a prompt is, and perhaps long.
PRIVATE_SETTINGS = ("generation.system_prompt", "guide.text")

# Accepted requests that end for one of these were stopped; for any other, or if never accepted, they failed.
_STOPPED = {
    RefusalCode.CANCELLED: FinishReason.CANCELLED,
    RefusalCode.SUPERSEDED: FinishReason.CANCELLED,
    RefusalCode.QUEUE_FULL: FinishReason.CANCELLED,
    RefusalCode.DISABLED: FinishReason.CANCELLED,
    RefusalCode.NOT_ACTIVE: FinishReason.CANCELLED,
    RefusalCode.SHUTTING_DOWN: FinishReason.CANCELLED,
    RefusalCode.DEADLINE: FinishReason.DEADLINE,
}


class RequestState(Enum):
    """Where a prompt is."""

    ARRIVED = "arrived"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass
class PromptRequest:
    """A prompt with the settings of the moment it arrived. Times are of ``time.monotonic``, in s.

    ``state``, ``stop`` and ``stop_time`` are covered by the lock of the bridge; the other fields belong to its
    worker thread once the request runs.
    """

    request_id: str
    prompt: str
    settings: Settings
    arrived: float = field(default_factory=time.monotonic)
    state: RequestState = RequestState.ARRIVED
    accepted: bool = False  # false: turned away at the door
    stop: Refusal | None = None  # the first reason to stop it; later ones do not count
    stop_time: float = 0.0
    handle: RequestHandle | TaskHandle | None = None
    seed: int | None = None
    started: float = 0.0
    history_turns: int = 0
    history_turns_dropped: int = 0
    control_tokens: int | None = None
    images: RequestImages = field(default_factory=RequestImages)
    details: dict[str, object] = field(default_factory=dict)  # of actions, for the report
    pieces: list[str] = field(default_factory=list)  # as published, one per delta
    first_delta: int | None = None
    first_delta_time: float | None = None

    @property
    def text(self) -> str:
        """What has been published of the answer."""
        return "".join(self.pieces)

    def report(
        self,
        engine: Mapping[str, str],
        *,
        refusal: Refusal | None = None,
        response: LLMGenerationResponse | None = None,
    ) -> Report:
        """The account of the request as it is now; ``refusal`` says why there is no (complete) answer."""
        reason, prompt_tokens, completion_tokens, times = FinishReason.ERROR, None, 0, SequenceTimes()
        reused_tokens, reasoning = None, ""
        pruning: PruningReport | None = None
        if response is not None and response.finish_reasons:
            reason = response.finish_reasons[0]
            prompt_tokens = response.input_token_counts[0] if response.input_token_counts else None
            reused_tokens = response.reused_token_counts[0] if response.reused_token_counts else None
            completion_tokens = len(response.output_ids[0]) if response.output_ids else 0
            times = response.times[0] if response.times else times
            reasoning = response.reasoning_texts[0] if response.reasoning_texts else ""
            pruning = response.pruning[0] if response.pruning else None
        if refusal is not None:
            reason = _STOPPED.get(refusal.code, FinishReason.ERROR) if self.accepted else FinishReason.ERROR
        include_text = self.settings.report.include_text
        changed = self.settings.changed()
        for name in PRIVATE_SETTINGS:
            if name in changed and not include_text:
                changed[name] = f"({len(str(changed[name]))} characters)"
        return Report(
            request_id=self.request_id,
            finish_reason=reason,
            refusal=refusal,
            timings=self._timings(times, completion_tokens),
            seed=self.seed,
            prompt_characters=len(self.prompt),
            prompt_tokens=prompt_tokens,
            reused_tokens=reused_tokens,
            completion_tokens=completion_tokens,
            reasoning_characters=len(reasoning),
            control_tokens=self.control_tokens,
            history_turns=self.history_turns,
            history_turns_dropped=self.history_turns_dropped,
            delta_count=len(self.pieces),
            first_delta=self.first_delta,
            last_delta=None if self.first_delta is None else self.first_delta + len(self.pieces) - 1,
            engine=engine,
            changed_settings=changed,
            details=dict(self.details),
            images=(*self.images.report_pairs(), *pruning_pairs(pruning).items()) if self.images.asked else (),
            prompt=self.prompt if include_text else None,
            response=self.text if include_text else None,
        )

    def _timings(self, times: SequenceTimes, tokens: int) -> Timings:
        def since(start: float, moment: float | None) -> float | None:
            return moment - start if moment else None

        begun = times.prefill_start or self.started
        decoding = times.last_token - times.first_token
        return Timings(
            queued=since(self.arrived, begun),
            time_to_first_token=since(times.queued or begun, times.first_token),
            time_to_first_delta=since(self.arrived, self.first_delta_time),
            time_to_last_token=since(self.arrived, times.last_token),
            total=time.monotonic() - self.arrived,
            tokens_per_second=(tokens - 1) / decoding if tokens > 1 and decoding > 0 else None,
        )


def pruning_pairs(report: PruningReport | None) -> dict[str, object]:
    """What a report of the node says about pruning; nothing where no image could be pruned."""
    if report is None:
        return {}
    return {
        "visual_tokens": report.before,
        "visual_tokens_kept": report.after,
        "visual_pruning": report.outcome.value,
    }
