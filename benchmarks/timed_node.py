"""The node with a stopwatch around ``publish``: the same executable, and a file of seconds per delta when it ends."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    from edgellm_ros.ros.node import main as node_main
    from rclpy.publisher import Publisher

    seconds: list[float] = []
    publish = Publisher.publish

    def timed(self: Publisher, message: Any) -> None:
        start = time.perf_counter()
        publish(self, message)
        if self.topic_name.endswith("response/delta"):
            seconds.append(time.perf_counter() - start)

    Publisher.publish = timed
    try:
        return int(node_main() or 0)
    finally:
        Path(os.environ["EDGELLM_PUBLISH_TIMES"]).write_text(json.dumps(seconds), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
