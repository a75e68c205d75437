"""What a node made of a recording, as digests that can be kept and compared; no words and no pictures are in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import EdgeLLMError, RefusalCode

FORMAT = 1
# of a report: what the same inputs, settings and seed give again, on any machine and at any speed
TOLD = ("finish_reason", "refusal_code", "seed", "prompt_tokens", "completion_tokens")
SEEN = ("images", "images_stamp", "images_absent", "visual_pruning", "visual_tokens", "visual_tokens_kept")
KINDS = {"answers": "answer", "chunks": "chunk"}

Entry = Mapping[str, str]


def digest(data: bytes) -> str:
    """Sixteen hexadecimal digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def answer_entry(report: Mapping[str, str]) -> dict[str, str]:
    """Of a report, as key-values, with the texts in it; those are kept as digests."""
    found = {key: report[key] for key in (*TOLD, *SEEN) if key in report}
    texts = {name: digest(report.get(name, "").encode()) for name in ("prompt", "response")}
    settings = {key: value for key, value in report.items() if key.startswith("setting.")}
    return {**found, **texts, **settings}


def chunk_entry(label: str, data: bytes) -> dict[str, str]:
    """``label`` has stamp, step, seed and noise digest as ``action_chunk`` says them, ``data`` the rows in bytes."""
    told = dict(part.partition("=")[::2] for part in label.split())
    return {**told, "rows": digest(data)}


@dataclass(frozen=True)
class ReplayRecord:
    """Answers in the order of their ends, chunks in the order of their publishing."""

    engine: str
    answers: Sequence[Entry] = field(default=())
    chunks: Sequence[Entry] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "format": FORMAT,
            "engine": self.engine,
            "answers": [dict(entry) for entry in self.answers],
            "chunks": [dict(entry) for entry in self.chunks],
        }

    def save(self, path: Path) -> None:
        """:raises EdgeLLMError: the file cannot be written."""
        try:
            path.write_text(json.dumps(self.to_json(), indent=1) + "\n", "utf-8")
        except OSError as error:
            raise _bad(f"{path} cannot be written ({error.strerror}); name another file.") from None


def load_record(path: Path) -> ReplayRecord:
    """:raises EdgeLLMError: the file is none that ``save`` wrote."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _bad(f"{path} cannot be read ({error.strerror}); write one with --output.") from None
    except (ValueError, RecursionError) as error:
        raise _bad(f"{path} is no JSON ({error}); write it anew with --output.") from None
    whole = found if isinstance(found, dict) else {}
    engine, answers, chunks = whole.get("engine"), whole.get("answers"), whole.get("chunks")
    if (
        whole.get("format") != FORMAT
        or not isinstance(engine, str)
        or not (isinstance(answers, list) and isinstance(chunks, list))
        or not all(map(_is_entry, [*answers, *chunks]))
    ):
        raise _bad(f"{path} does not hold a record of a replay, format {FORMAT}; write it anew with --output.")
    return ReplayRecord(engine, answers, chunks)


def first_difference(expected: ReplayRecord, found: ReplayRecord) -> str | None:
    """The first answer or chunk that differs, and in what, in one sentence; None where all are equal."""
    engine = f" The engine is {found.engine} (was {expected.engine})." if found.engine != expected.engine else ""
    for kind, name in KINDS.items():
        wanted, came = getattr(expected, kind), getattr(found, kind)
        for index, (one, other) in enumerate(zip(wanted, came, strict=False), 1):
            changes = [
                f"{key} {other.get(key, 'nothing')!r} (was {one.get(key, 'nothing')!r})"
                for key in {**one, **other}
                if one.get(key) != other.get(key)
            ]
            if changes:
                stamp = other.get("stamp") or other.get("images_stamp")
                where = f"{name} {index} of stamp {stamp}" if stamp else f"{name} {index}"
                return f"{where} has {', '.join(changes)}.{engine}"
        if len(wanted) != len(came):
            return f"{len(came)} {kind} came (were {len(wanted)}).{engine}"
    return None


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(part, str) for part in value.values())


def _bad(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
