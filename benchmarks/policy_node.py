"""The node of a policy as an engine: the tabletop's world and the node as processes, and the client that asks, here."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from .harness import percentile
from .ours import version
from .workspace import ROOT

TASK = "touch the blue cube"
RATE = "10"  # chunks a second that are asked for
_SECONDS = 120.0


class PolicyNode:
    """Starts world and node anew in each round, lets the node act, and ends them."""

    def __init__(self, *, threads: int, engine_directory: str) -> None:
        from edgellm_ros.cli.node_session import set_environment

        self._threads, self._directory = threads, engine_directory
        set_environment(None)

    def versions(self) -> dict[str, str]:
        """Versions of this package, the engine library and the ROS client library."""
        return {name: version(name) for name in ("edgellm_ros", "onnxruntime", "rclpy")}

    def session(self, chunks: int) -> dict[str, float]:
        """Medians over ``chunks`` in milliseconds; the overhead is all of a chunk that the runtime did not take.

        :raises RuntimeError: fewer chunks came.
        """
        from edgellm_ros.cli.node_session import node_session
        from edgellm_ros.ros.client import spin_until
        from edgellm_ros.tabletop.client import TabletopClient
        from edgellm_ros.tabletop.launch_spec import tabletop_specs

        with tempfile.TemporaryDirectory() as folder:
            times = Path(folder) / "times.json"
            world, node = tabletop_specs({"engine_dir": self._directory, "rate": RATE, "simulated_time": "false"})
            node = replace(
                node,
                module="benchmarks.timed_policy_node",
                environment={**node.environment, "EDGELLM_NODE_TIMES": str(times), "PYTHONPATH": _python_path()},
                parameters={**node.parameters, "engine.threads": self._threads, "generation.timeout": 0.0},
            )
            with node_session((world, node), lambda spec: TabletopClient(server=spec.name), quiet=True) as session:
                client = session.client
                _at_ordinary_priority(session.processes[0].pid)
                client.reset(session.executor, 0)
                client.ask(TASK)
                spin_until(session.executor, lambda: len(client.seeds) > chunks, _SECONDS)
                client.cancel()
                spin_until(session.executor, lambda: bool(client.reports), _SECONDS)
            rows = json.loads(times.read_text(encoding="utf-8"))[1 : chunks + 1]  # the first finds nothing ready
        if len(rows) < chunks:
            raise RuntimeError(f"{len(rows)} chunks were timed; want {chunks}")
        overhead = [1e3 * (row["step"] - row["compute"]) for row in rows]
        return {
            "node_overhead": statistics.median(overhead),
            "node_overhead_p95": percentile(overhead, 95),
            "node_overhead_cpu": 1e3 * statistics.median(row["step_cpu"] - row["compute_cpu"] for row in rows),
            "publish_time": 1e3 * statistics.median(row["publish"] for row in rows),
            "observe_time": 1e3 * statistics.median(row["observe"] for row in rows),
            "chunk_time": 1e3 * statistics.median(row["compute"] for row in rows),
        }

    def close(self) -> None:
        """Nothing runs between rounds."""


def _at_ordinary_priority(pid: int) -> None:
    """Let the world, which renders pictures where a robot has cameras, take what the node leaves of the processors."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
