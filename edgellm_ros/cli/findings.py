"""What a check of a machine has found: one sentence each, told to a person or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

from ..errors import EdgeLLMError, one_sentence


class Verdict(str, Enum):
    """What a finding means for a robot."""

    OK = "ok"
    WARNING = "warning"  # it runs, though perhaps not as somebody expects
    PROBLEM = "problem"  # it does not


@dataclass(frozen=True)
class Finding:
    """One line; ``subject`` is a word, such as memory."""

    subject: str
    verdict: Verdict
    sentence: str


class _Part:
    def __init__(self, findings: Findings, subject: str) -> None:
        self._findings, self._subject = findings, subject

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, EdgeLLMError):
            self._findings.problem(self._subject, str(error))
        return isinstance(error, EdgeLLMError)


class Findings:
    """Filled by the parts of a check, in their order."""

    def __init__(self) -> None:
        self.entries: list[Finding] = []

    def add(self, subject: str, verdict: Verdict, sentence: str) -> None:
        """Keep one; what it quotes is brought onto its line."""
        self.entries.append(Finding(subject, verdict, one_sentence(sentence)))

    def ok(self, subject: str, sentence: str) -> None:
        """It is as it should be."""
        self.add(subject, Verdict.OK, sentence)

    def warning(self, subject: str, sentence: str) -> None:
        """It runs, though perhaps not as somebody expects."""
        self.add(subject, Verdict.WARNING, sentence)

    def problem(self, subject: str, sentence: str) -> None:
        """It does not run so."""
        self.add(subject, Verdict.PROBLEM, sentence)

    def of(self, subject: str) -> _Part:
        """For a ``with`` statement: what the block refuses is a problem, and the check goes on behind it."""
        return _Part(self, subject)

    @property
    def problems(self) -> list[Finding]:
        """Those that keep it from running."""
        return [entry for entry in self.entries if entry.verdict is Verdict.PROBLEM]

    def lines(self) -> list[str]:
        """For a person: first what is well, then warnings, and at the end the problems, numbered."""
        width = max((len(entry.subject) for entry in self.entries), default=0)
        shown = [
            f"{entry.verdict.value:<8} {entry.subject:<{width}}  {entry.sentence}"
            for verdict in (Verdict.OK, Verdict.WARNING)
            for entry in self.entries
            if entry.verdict is verdict
        ]
        numbered = [
            f"{f'{number}.':<8} {entry.subject:<{width}}  {entry.sentence}"
            for number, entry in enumerate(self.problems, 1)
        ]
        return shown + numbered

    def to_json(self) -> dict[str, Any]:
        """The same for a program; ``passed`` where there is no problem."""
        entries = [
            {"subject": entry.subject, "verdict": entry.verdict.value, "sentence": entry.sentence}
            for entry in self.entries
        ]
        return {"passed": not self.problems, "findings": entries}
