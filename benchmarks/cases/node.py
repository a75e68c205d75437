"""What ROS adds: a real node process, a client in another process, int8 weights."""

from __future__ import annotations

from collections.abc import Callable

from ..harness import Case, EngineSpec, Metric
from ..workspace import Workspace


def int8(workspace: Workspace) -> Case:
    options = {"engine_directory": str(workspace.engine_directory("int8"))}
    return Case(
        "node_int8",
        EngineSpec("edgellm node", "benchmarks.ros_node:Node", options),
        (
            Metric("first_delta", "ms after publishing"),
            Metric("first_delta_added", "ms over the runtime's", "<= 5"),
            Metric("publish_time", "us a delta", "< 150"),
            Metric("outside_share", "% of a step", "< 5"),
            Metric("active_after", "s from start", "<= 2.5"),
            Metric("peak_memory", "MB", "< 450"),
        ),
        "session",
        {"prompts": 8, "tokens": 32},
    )


CASES: dict[str, Callable[[Workspace], Case]] = {"node_int8": int8}
