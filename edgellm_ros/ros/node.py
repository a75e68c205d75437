"""The process ``edgellm_node``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .node_main import run_node


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node until a signal or a shutdown of its context; see ``run_node``."""
    command_line = sys.argv[1:] if arguments is None else arguments
    return run_node(
        "edgellm",
        lambda: _make_node(command_line),
        arguments,
        idle=lambda node: node.bridge.load == (False, 0),
        shut_down=_shut_down,
    )


def _make_node(command_line: Sequence[str]) -> Any:
    """:raises EdgeLLMError: a parameter is refused; ROS raises errors of its own for what it cannot read."""
    from .lifecycle_node import EdgeLLMNode

    node = EdgeLLMNode()
    for sentence in node.parameters.dropped_overrides(command_line):
        node.get_logger().warning(sentence)
    return node


def _shut_down(node: Any) -> None:
    """End what runs, tell about it, and bring the node to its last state."""
    if node.parameters.lifecycle() in ("unconfigured", "inactive", "active"):
        node.trigger_shutdown()
    node.outputs.flush(0.2)


if __name__ == "__main__":
    sys.exit(main())
