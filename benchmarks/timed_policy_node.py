"""The node of a policy with stopwatches: the same executable, and a file of times when it ends.

The file is JSON with a row of seconds for each chunk: ``compute`` in the runtime, ``step`` from an observation to what
was published, ``publish`` of that, and ``observe`` before it, from the messages kept to the pictures; with ``_cpu``
behind, those in which the thread had a processor. Its name comes from the environment variable ``EDGELLM_NODE_TIMES``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    from edgellm_ros.action.policy_runtime import PolicyRuntime
    from edgellm_ros.ros.action_publishers import ActionPublishers
    from edgellm_ros.ros.node import main as node_main
    from edgellm_ros.ros.policy_run import PolicyRun

    rows: list[dict[str, float]] = []
    current: dict[str, float] = {}

    def watch(owner: type, method: str, name: str, ends: bool = False) -> None:
        original = getattr(owner, method)

        def timed(*arguments: Any, **options: Any) -> Any:
            start, processor = time.perf_counter(), time.thread_time()
            result = original(*arguments, **options)
            current[name], current[f"{name}_cpu"] = time.perf_counter() - start, time.thread_time() - processor
            if ends and {"observe", "compute", "publish"} <= set(current):
                rows.append(dict(current))
                current.clear()
            return result

        setattr(owner, method, timed)

    watch(PolicyRun, "_observe", "observe")
    watch(PolicyRun, "_step", "step", ends=True)
    watch(PolicyRuntime, "compute", "compute")
    watch(ActionPublishers, "publish_plan", "publish")
    try:
        return int(node_main() or 0)
    finally:
        Path(os.environ["EDGELLM_NODE_TIMES"]).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
