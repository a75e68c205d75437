"""The statuses on /diagnostics: one for engine, requests, input, output, memory and device, numbers included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diagnostic_msgs.msg import DiagnosticStatus

from ..backends.host_memory import available_memory, resident_memory
from .cameras import CameraFacts
from .counters import CounterValues
from .engine_host import EngineFacts
from .publishers import diagnostic_status
from .report import Level, value_text

RECENT = 10.0  # s for which a refusal keeps the status at WARN


@dataclass(frozen=True)
class DiagnosticFacts:
    """A snapshot of the node, taken by the timer."""

    node_name: str
    lifecycle: str
    level: Level
    sentence: str
    counters: CounterValues
    engine: EngineFacts | None = None
    engine_fault: str = ""
    engine_memory: Mapping[str, int] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)  # by graph, where a backend has several
    context_cache: Mapping[str, int] = field(default_factory=dict)
    running: bool = False
    waiting: int = 0
    history_turns: int = 0
    prompt_topic: str = ""
    prompt_publishers: int = 0
    response_topic: str = ""
    response_subscribers: int = 0
    delta_subscribers: int = 0
    qos_problems: Mapping[str, str] = field(default_factory=dict)
    cameras: Sequence[CameraFacts] = ()
    profile_warning: str = ""
    policy: Mapping[str, object] = field(default_factory=dict)
    without_effect: Sequence[str] = ()  # parameters of actions that were set where nothing acts


def diagnostic_statuses(facts: DiagnosticFacts) -> list[DiagnosticStatus]:
    """Messages for one array."""
    hardware_id = facts.engine.fingerprint if facts.engine else ""

    def status(name: str, outcome: tuple[Level, str], values: Mapping[str, object]) -> DiagnosticStatus:
        pairs = [(key, value_text(value)) for key, value in values.items()]
        return diagnostic_status(outcome[0], f"{facts.node_name}: {name}", outcome[1], hardware_id, pairs)

    statuses = [
        status("engine", (facts.level, facts.sentence), _engine_values(facts)),
        status("requests", _requests(facts), _request_values(facts)),
        status(
            "input prompt",
            _topic(facts, facts.prompt_topic, f"{facts.prompt_publishers} publishers"),
            {
                "topic": facts.prompt_topic,
                "publishers": facts.prompt_publishers,
                "received": facts.counters.received,
            },
        ),
        *(status(f"input {camera.name}", _camera(facts, camera), camera.values()) for camera in facts.cameras),
        status(
            "output response",
            # Pieces of the answer go out below it.
            _topic(
                facts,
                facts.response_topic,
                f"{facts.response_subscribers} subscribers",
                f"{facts.response_topic}/delta",
            ),
            {
                "topic": facts.response_topic,
                "subscribers": facts.response_subscribers,
                "delta_subscribers": facts.delta_subscribers,
                "deltas": facts.counters.deltas,
                "stream_mismatches": facts.counters.stream_mismatches,
                "unpublished": facts.counters.unpublished,
            },
        ),
        status("memory", _memory_line(), _memory_values(facts)),
        status("device", _device(facts), _device_values(facts)),
    ]
    if facts.policy:
        word = "The robot follows a plan." if facts.policy.get("moving") else "The robot holds."
        statuses.append(status("policy", (Level.OK, word), facts.policy))
    if facts.without_effect:
        names = ", ".join(facts.without_effect)
        sentence = f"The engine holds no policy, so these parameters have no effect: {names}."
        statuses.append(status("policy", (Level.WARN, sentence), {"without_effect": names}))
    return statuses


def _device(facts: DiagnosticFacts) -> tuple[Level, str]:
    if facts.profile_warning:
        return Level.WARN, facts.profile_warning
    return Level.OK, f"{facts.engine.threads} threads" if facts.engine else "no engine"


def _device_values(facts: DiagnosticFacts) -> dict[str, object]:
    if facts.engine is None:
        return {}
    libraries = {f"library.{graph}": text for graph, text in sorted(facts.libraries.items())}
    return {"backend": facts.engine.backend, "threads": facts.engine.threads, **libraries}


def _engine_values(facts: DiagnosticFacts) -> dict[str, object]:
    values: dict[str, object] = {"lifecycle": facts.lifecycle}
    if facts.engine:
        values.update(
            model=facts.engine.model,
            precision=facts.engine.precision,
            directory=facts.engine.directory,
            fingerprint=facts.engine.fingerprint,
            load_time_s=facts.engine.load_time,
        )
    return values


def _requests(facts: DiagnosticFacts) -> tuple[Level, str]:
    counters = facts.counters
    if counters.last_refusal is not None and (counters.last_refusal_age or 0.0) < RECENT:
        return Level.WARN, f"Last refusal ({counters.last_refusal.code.value}): {counters.last_refusal.message}"
    refused = sum(counters.refused.values())
    return Level.OK, f"{counters.answered} answered, {refused} ended without an answer."


def _request_values(facts: DiagnosticFacts) -> dict[str, object]:
    counters = facts.counters
    values: dict[str, object] = {
        "received": counters.received,
        "answered": counters.answered,
        "running": int(facts.running),
        "waiting": facts.waiting,
        "prompt_tokens": counters.prompt_tokens,
        "prompt_tokens_reused": counters.reused_tokens,
        "completion_tokens": counters.completion_tokens,
        "history_turns": facts.history_turns,
    }
    values.update({f"finished.{reason}": count for reason, count in sorted(counters.finish_reasons.items())})
    values.update({f"refused.{code}": count for code, count in sorted(counters.refused.items())})
    return values


def _camera(facts: DiagnosticFacts, camera: CameraFacts) -> tuple[Level, str]:
    level, sentence = _topic(facts, camera.topic, f"{camera.publishers} publishers")
    if level is Level.OK and camera.others and not camera.publishers:
        return Level.WARN, (
            f"What is published on {camera.topic} is {' and '.join(camera.others)}, not of the type that the transport "
            f"{camera.transport} takes; change images.transport, or remap the topic."
        )
    if level is Level.OK and camera.age is None:
        return Level.WARN, f"No image has come from {camera.name} yet; {sentence} on {camera.topic}."
    return level, sentence


def _topic(facts: DiagnosticFacts, topic: str, message: str, *others: str) -> tuple[Level, str]:
    problem = next((facts.qos_problems[name] for name in (topic, *others) if name in facts.qos_problems), "")
    return (Level.WARN, problem) if problem else (Level.OK, message)


def _memory_line() -> tuple[Level, str]:
    resident = resident_memory()
    return Level.OK, f"{resident >> 20} MB in memory" if resident is not None else "not known"


def _memory_values(facts: DiagnosticFacts) -> dict[str, object]:
    values: dict[str, object] = {"resident_bytes": resident_memory(), "available_bytes": available_memory()}
    values.update({f"engine_{kind}_bytes": size for kind, size in facts.engine_memory.items()})
    values.update({f"context_cache_{name}": value for name, value in facts.context_cache.items()})
    return values
