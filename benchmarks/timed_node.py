"""The node with stopwatches: the same executable, and a file of times when it ends.

The file is JSON: ``publish``, seconds per message on ``response/delta``; ``sessions``, start and end of every engine
call. Its name comes from the environment variable ``EDGELLM_NODE_TIMES``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .session_times import watch_sessions


def main() -> int:
    from rclpy.publisher import Publisher

    from edgellm_ros.ros.node import main as node_main

    seconds: list[float] = []
    publish = Publisher.publish

    def timed(self: Any, message: Any) -> None:
        start = time.perf_counter()
        publish(self, message)
        if self.topic_name.endswith("response/delta"):
            seconds.append(time.perf_counter() - start)

    setattr(Publisher, "publish", timed)  # noqa: B010 - a plain assignment to a method is an error for type checkers
    spans = watch_sessions()
    try:
        return int(node_main() or 0)
    finally:
        content = json.dumps({"publish": seconds, "sessions": spans})
        Path(os.environ["EDGELLM_NODE_TIMES"]).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
