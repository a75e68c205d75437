"""Run ours and peers side by side: engines in processes of their own, rounds interleaved, medians and ratios.

Each engine of a case lives in one child process from its first round to its last. A round asks every engine once,
starting with another one each time, while the others wait; so a change in the machine's mood meets all of them. The
first round is dropped. Nothing here knows what an engine is: ``worker.py`` is the other end.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .process import EngineLostError, EngineProcess

Values = dict[str, float]


class PeerUnavailableError(Exception):
    """A peer that cannot take part; the message is the reason, as the table shows it."""


@dataclass(frozen=True)
class EngineSpec:
    """How to start an engine: ``program`` is ``module:Class``, ``options`` its JSON-able keyword arguments."""

    label: str
    program: str
    options: Mapping[str, Any] = field(default_factory=dict)
    interpreter: str | None = None  # another Python; None is the one that runs the harness
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None  # seconds for the start and for each round; None is the harness's


@dataclass(frozen=True)
class SkippedPeer:
    """A peer that is known before the start not to take part."""

    label: str
    reason: str


@dataclass(frozen=True)
class Metric:
    """One figure of a round. ``target`` is for people to read; nothing is asserted."""

    name: str
    unit: str
    target: str = ""


@dataclass(frozen=True)
class Case:
    """One task that every engine does in each round; an engine may answer with some of the metrics only."""

    name: str
    ours: EngineSpec
    metrics: tuple[Metric, ...]
    task: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    peers: tuple[EngineSpec | SkippedPeer, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the model and the task, to stand in each row


@dataclass(frozen=True)
class Row:
    """One line of the table; ``to_json`` gives what is committed."""

    case: str
    metric: Metric
    ours: float
    ours_runs: tuple[float, ...]
    peer: str | None = None
    peer_value: float | None = None
    peer_runs: tuple[float, ...] = ()
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    skipped: str = ""  # why the peer has no value
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's; None without a peer value."""
        return self.ours / self.peer_value if self.peer_value else None

    def to_json(self) -> dict[str, Any]:
        """The row with exactly the keys that results files have; with facts, these and how far rounds spread, too."""
        ratio = self.ratio
        spread = {
            "median": significant(self.ours),
            "p95": significant(percentile(self.ours_runs, 95)),
            "peer_p95": significant(percentile(self.peer_runs, 95)) if self.peer_runs else None,
        }
        return {
            "case": self.case,
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "ours": significant(self.ours),
            "peer": f"{self.peer} (skipped: {self.skipped})" if self.skipped else self.peer,
            "peer_value": None if self.peer_value is None else significant(self.peer_value),
            "ratio": None if ratio is None else significant(ratio),
            "device": self.device,
            "versions": dict(self.versions),
            "runs": {
                "ours": [significant(value) for value in self.ours_runs],
                "peer": [significant(value) for value in self.peer_runs],
            },
            **({**self.facts, **spread} if self.facts else {}),
        }


def significant(value: float, digits: int = 5) -> float:
    """Rounded to so many significant digits."""
    return float(f"{value:.{digits}g}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` percent lie below, between two rounds where it falls there."""
    ordered, place = sorted(values), (len(values) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def device_name(threads: int) -> str:
    """Processor, cores in use and memory of this machine."""
    model, memory = platform.processor() or platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                model = line.split(":", 1)[1].strip()
                break
        total = Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]
        memory = f", {int(total) / 2**20:.0f} GiB"
    except (OSError, IndexError, ValueError):
        pass  # not Linux: the name of the architecture must do
    return f"{model} ({platform.machine()}), {threads} threads{memory}"


class Interleaver:
    """Starts the engines of one case and asks them in turns.

    :param start: makes the process of a specification; tests give their own.
    :param say: takes progress lines.
    """

    def __init__(
        self,
        rounds: int,
        threads: int,
        *,
        timeout: float = 600.0,
        start: Callable[..., EngineProcess] = EngineProcess,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}; want at least 1.")
        self.rounds = rounds
        self.threads = threads
        self.timeout = timeout
        self._start = start
        self._say = say

    def run(self, case: Case) -> list[Row]:
        """Rows of one case.

        :raises EngineLostError: our own engine failed; a peer that fails becomes a skipped peer.
        """
        skipped = {peer.label: peer.reason for peer in case.peers if isinstance(peer, SkippedPeer)}
        specifications = [case.ours, *(peer for peer in case.peers if isinstance(peer, EngineSpec))]
        engines: dict[str, EngineProcess] = {}
        runs: dict[str, list[Values]] = {spec.label: [] for spec in specifications}
        versions: dict[str, dict[str, str]] = {}
        try:
            for spec in specifications:
                self._say(f"{case.name}: starting {spec.label}")
                try:
                    engines[spec.label] = self._start(spec, threads=self.threads, timeout=spec.timeout or self.timeout)
                    versions[spec.label] = engines[spec.label].versions
                except EngineLostError as lost:
                    if spec is case.ours:
                        raise
                    skipped[spec.label] = str(lost)
            for index in range(self.rounds + 1):
                order = [spec for spec in specifications if spec.label in engines]
                shift = index % len(order)
                for spec in order[shift:] + order[:shift]:
                    try:
                        values = engines[spec.label].round(case.task, case.arguments)
                    except EngineLostError as lost:
                        if spec is case.ours:
                            raise
                        skipped[spec.label] = str(lost)
                        engines.pop(spec.label).close()
                        continue
                    if index:
                        runs[spec.label].append(values)
                self._say(f"{case.name}: round {index} of {self.rounds}{' (dropped)' if index == 0 else ''}")
        except BaseException:  # an interrupt must not wait for the round that is under way
            for engine in engines.values():
                engine.kill()
            raise
        finally:
            for engine in engines.values():
                engine.close()
        return self._rows(case, runs, versions, skipped)

    def _rows(
        self,
        case: Case,
        runs: Mapping[str, Sequence[Values]],
        versions: Mapping[str, Mapping[str, str]],
        skipped: Mapping[str, str],
    ) -> list[Row]:
        """A row for each metric and peer that has it; a skipped peer has one row, a metric without peers too."""
        rows: list[Row] = []
        for metric in case.metrics:
            ours = column(runs[case.ours.label], metric.name)
            if not ours:
                raise EngineLostError(f"{case.ours.label} gave no {metric.name}; it must be in every round's answer")
            alone = Row(
                case.name,
                metric,
                statistics.median(ours),
                ours,
                device=device_name(self.threads),
                versions=dict(versions[case.ours.label]),
                facts=case.facts,
            )
            compared = []
            for peer in case.peers:
                values = column(runs.get(peer.label, ()), metric.name)
                if peer.label in skipped:
                    if metric is case.metrics[0]:
                        compared.append(replace(alone, peer=peer.label, skipped=skipped[peer.label]))
                elif values:
                    both = {**alone.versions, **versions[peer.label]}
                    median = statistics.median(values)
                    compared.append(replace(alone, peer=peer.label, peer_value=median, peer_runs=values, versions=both))
            rows += compared or [alone]
        return rows


def column(rounds: Sequence[Values], name: str) -> tuple[float, ...]:
    """One metric's values over the rounds that gave it."""
    return tuple(float(values[name]) for values in rounds if name in values)


def table(rows: Sequence[Row]) -> str:
    """Rows for a terminal: medians, spread as min-max, ratio, target; then the skipped peers with their reasons."""
    head = ("case", "metric", "ours", "spread", "peer", "value", "spread", "ratio", "target")
    lines = [head]
    for row in rows:
        ratio = row.ratio
        lines.append(
            (
                row.case,
                f"{row.metric.name} ({row.metric.unit})",
                f"{row.ours:.4g}",
                spread(row.ours_runs),
                (row.peer or "-") + (" (skipped)" if row.skipped else ""),
                "-" if row.peer_value is None else f"{row.peer_value:.4g}",
                spread(row.peer_runs),
                "-" if ratio is None else f"{ratio:.3f}",
                row.metric.target or "-",
            )
        )
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    reasons = dict.fromkeys(f"skipped: {row.peer}: {row.skipped}" for row in rows if row.skipped)
    return "\n".join([*text, *reasons])


def spread(values: Sequence[float]) -> str:
    """Smallest and largest value."""
    return f"{min(values):.4g}-{max(values):.4g}" if values else "-"
