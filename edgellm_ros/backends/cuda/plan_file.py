"""What lies beside a TensorRT plan: the version, GPU and graph it was compiled for, and digests to check it by.

A plan goes by the name of its graph: that of ``llm.onnx`` is ``llm.engine``, with ``llm.engine.json`` and
``llm.timing.cache``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...engine_format import ACTION_DIRECTORY, PLAN_FILE
from ...errors import BackendError, EngineDirectoryError
from ...json_values import read_json

PLAN_SUFFIX = ".engine"
_FORMAT = 1
_AGAIN = "compile it again with 'edgellm build ... --plan' on this machine"
_BLOCK = 1 << 22


def plan_of(graph: Path) -> Path:
    """Where the plan of a graph lies."""
    return graph.with_suffix(PLAN_SUFFIX)


def main_plan(directory: Path) -> Path:
    """The plan without which an engine directory does not run under TensorRT: a policy's is that of its actions."""
    actions = directory / ACTION_DIRECTORY
    return actions / f"{ACTION_DIRECTORY}{PLAN_SUFFIX}" if actions.is_dir() else directory / PLAN_FILE


def info_of(plan: Path) -> Path:
    """Where the description of a plan lies."""
    return plan.with_name(f"{plan.name}.json")


def timings_of(plan: Path) -> Path:
    """Where the timing cache of a plan lies."""
    return plan.with_suffix(".timing.cache")


@dataclass(frozen=True)
class PlanInfo:
    """Where and from what a plan was compiled."""

    tensorrt: str
    architecture: str  # of the GPU, as compilers name it
    device: str
    precision: str
    plan_bytes: int
    plan_sha256: str
    graph_sha256: str
    limits: Mapping[str, int] = field(default_factory=dict)
    build_seconds: float = 0.0
    format_version: int = _FORMAT

    def write(self, path: Path) -> None:
        """Beside the plan at ``path``."""
        info_of(path).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def read_plan_info(path: Path) -> PlanInfo:
    """What lies beside the plan at ``path``.

    :raises BackendError: missing, damaged, or of another format version.
    """
    place = info_of(path)
    try:
        content: dict[str, Any] = read_json(place)
        if content.get("format_version") != _FORMAT:
            raise BackendError(
                f"{place} has format_version {content.get('format_version')!r}; this version reads {_FORMAT}: {_AGAIN}."
            )
        return PlanInfo(**content)
    except EngineDirectoryError as error:
        raise BackendError(f"{error} ({_AGAIN})") from None
    except TypeError:
        raise BackendError(f"{place} has other keys than this version writes; {_AGAIN}.") from None


def check_target(path: Path, version: str, architecture: str, device: str) -> PlanInfo:
    """The plan's description, once it is found to be for this version and GPU; reads no plan.

    :raises BackendError: it is not; the sentence says what differs.
    """
    if not path.is_file():
        raise BackendError(f"{path} is missing; {_AGAIN}.")
    info = read_plan_info(path)
    if info.tensorrt != version:
        raise BackendError(f"{path} was compiled by TensorRT {info.tensorrt}; this machine has {version}: {_AGAIN}.")
    if info.architecture != architecture:
        raise BackendError(
            f"{path} was compiled for {info.device} ({info.architecture}); this GPU is {device} ({architecture}): "
            f"{_AGAIN}."
        )
    return info


def check_plan(path: Path, version: str, architecture: str, device: str) -> PlanInfo:
    """The plan's description, once everything in it fits this machine and the files.

    :raises BackendError: it does not; the sentence says what differs.
    """
    info = check_target(path, version, architecture, device)
    found = path.stat().st_size
    if found != info.plan_bytes:
        raise BackendError(f"{path} has {found} bytes; its description wants {info.plan_bytes}: {_AGAIN}.")
    if file_digest(path) != info.plan_sha256:
        raise BackendError(f"{path} is damaged (its digest differs from its description's); {_AGAIN}.")
    graph = path.with_suffix(".onnx")
    if graph.is_file() and file_digest(graph) != info.graph_sha256:
        raise BackendError(f"{path} was compiled from another {graph.name} than the one beside it; {_AGAIN}.")
    return info
