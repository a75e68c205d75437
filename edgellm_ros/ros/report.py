"""What is told about a request when it has ended: the content of the ``report`` topic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ..errors import Refusal, RefusalCode
from ..runtime.request import FinishReason
from .parameter_schema import Value

_FAULTS = (RefusalCode.ENGINE_FAILED, RefusalCode.STEP_TIMEOUT)


class Level(IntEnum):
    """Levels of diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass(frozen=True)
class Timings:
    """Seconds; None where the request never got there. All but ``time_to_first_token`` count from the arrival."""

    queued: float | None = None  # until the engine began with the prompt
    time_to_first_token: float | None = None  # the engine's own: from the start of its work
    time_to_first_delta: float | None = None  # until the first piece was published
    time_to_last_token: float | None = None
    total: float = 0.0
    tokens_per_second: float | None = None  # after the first token


@dataclass(frozen=True)
class Report:
    """The account of one request. ``first_delta``, ``last_delta``: sequence numbers since the node started.

    A subscriber that joins late sees from ``delta_count`` how many messages on ``response/delta`` the answer had.
    Prompt and answer are empty unless they were asked for.
    """

    request_id: str
    finish_reason: FinishReason
    refusal: Refusal | None
    timings: Timings
    seed: int | None = None
    prompt_characters: int = 0
    prompt_tokens: int | None = None
    reused_tokens: int | None = None  # of them, those that were not computed again
    completion_tokens: int = 0
    reasoning_characters: int = 0  # of what the model thought before its answer, which is not published
    control_tokens: int | None = None  # found in the user's text
    history_turns: int = 0
    history_turns_dropped: int = 0
    delta_count: int = 0
    first_delta: int | None = None
    last_delta: int | None = None
    images: Sequence[tuple[str, object]] = ()  # what was seen, and what of it was pruned
    engine: Mapping[str, str] = field(default_factory=dict)  # model, backend, fingerprint
    changed_settings: Mapping[str, Value] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)  # of actions
    prompt: str | None = None
    response: str | None = None

    @property
    def level(self) -> Level:
        """OK for an answer, ERROR for a fault of the engine, WARN for every other end."""
        if self.refusal is None:
            return Level.OK
        return Level.ERROR if self.refusal.code in _FAULTS else Level.WARN

    @property
    def sentence(self) -> str:
        """The end in one sentence."""
        if self.refusal is not None:
            return self.refusal.message
        if chunks := self.details.get("chunks"):
            return f"Acted with {chunks} chunks in {self.timings.total:.2f} s ({self.finish_reason.label})."
        return (
            f"Answered with {self.completion_tokens} tokens in {self.timings.total:.2f} s ({self.finish_reason.label})."
        )

    def pairs(self) -> list[tuple[str, str]]:
        """Keys and values in a fixed order; a value that does not exist is empty, ``setting.*`` keys come last."""
        timings = self.timings
        values: list[tuple[str, object]] = [
            ("request_id", self.request_id),
            ("finish_reason", self.finish_reason.label),
            ("refusal_code", self.refusal.code.value if self.refusal else None),
            ("refusal", self.refusal.message if self.refusal else None),
            ("seed", self.seed),
            ("prompt_characters", self.prompt_characters),
            ("prompt_tokens", self.prompt_tokens),
            ("prompt_tokens_reused", self.reused_tokens),
            ("completion_tokens", self.completion_tokens),
            ("reasoning_characters", self.reasoning_characters),
            ("control_tokens_in_prompt", self.control_tokens),
            ("history_turns", self.history_turns),
            ("history_turns_dropped", self.history_turns_dropped),
            ("queued_s", timings.queued),
            ("time_to_first_token_s", timings.time_to_first_token),
            ("time_to_first_delta_s", timings.time_to_first_delta),
            ("time_to_last_token_s", timings.time_to_last_token),
            ("total_s", timings.total),
            ("tokens_per_second", timings.tokens_per_second),
            ("delta_count", self.delta_count),
            ("first_delta", self.first_delta),
            ("last_delta", self.last_delta),
            *self.images,
            *self.details.items(),
            *((f"engine.{key}", value) for key, value in self.engine.items()),
        ]
        if self.prompt is not None:
            values.append(("prompt", self.prompt))
        if self.response is not None:
            values.append(("response", self.response))
        values += [(f"setting.{name}", value) for name, value in self.changed_settings.items()]
        return [(key, value_text(value)) for key, value in values]


def value_text(value: object) -> str:
    """A value as key-value messages carry it: empty for None, JSON for lists and booleans, six digits for floats."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
