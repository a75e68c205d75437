"""Writing an engine directory from the SmolLM2 GGUF: seconds and peak memory of the command."""

from __future__ import annotations

from collections.abc import Callable

from ..harness import Case, EngineSpec, Metric
from ..workspace import LIMITS, Workspace


def make(precision: str) -> Callable[[Workspace], Case]:
    def case(workspace: Workspace) -> Case:
        options = {
            "source": str(workspace.source),
            "scratch": str(workspace.cache),
            "precision": precision,
            "limits": LIMITS,
        }
        targets = {"int8": ("< 12", "< 900")}.get(precision, ("", ""))
        return Case(
            f"build_{precision}",
            EngineSpec(f"edgellm build {precision}", "benchmarks.commands:Build", options),
            (Metric("build_time", "s", targets[0]), Metric("peak_memory", "MB", targets[1])),
            "build",
        )

    return case


CASES = {f"build_{precision}": make(precision) for precision in ("int8", "int4", "fp32")}
