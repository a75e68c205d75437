"""The image tower of SmolVLM2-500M, two pictures of 512 by 512: fewer bits against float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..harness import Case, EngineSpec, Metric
from ..policy_shape import VIEWS
from ..workspace import Workspace
from .policy import KINDS


def _tower(workspace: Workspace, precision: str, exact: str) -> EngineSpec:
    weights, backend = KINDS[precision]
    options = {"engine_directory": str(workspace.policy_directory(weights)), "backend": backend, "exact": exact}
    return EngineSpec(f"edgellm {precision}, {backend}", "benchmarks.ours_policy:Tower", options)


def tower(precision: str, workspace: Workspace) -> Case:
    exact = str(workspace.policy_directory("fp32"))
    return Case(
        f"vision_{precision}",
        _tower(workspace, precision, exact),
        (Metric("vision_time", "ms", "<= fp32 / 2"), Metric("cosine", "with fp32, least of a row", ">= 0.999")),
        "encode",
        {},
        (_tower(workspace, "fp32", ""),),
        {
            "model": "SmolVLM2-500M's image tower, random weights", "views": VIEWS, "precision": precision,
            "backend": KINDS[precision][1],
        },
    )  # fmt: skip


CASES: dict[str, Callable[[Workspace], Case]] = {
    f"vision_{precision}": partial(tower, precision) for precision in ("int8", "bf16")
}
