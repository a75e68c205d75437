"""The process ``tabletop_world``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..ros.node_main import run_node


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the world until a signal or a shutdown of its context; see ``run_node``."""
    return run_node("tabletop", _make_node, arguments)


def _make_node() -> Any:
    """ROS raises errors of its own for parameters that it refuses."""
    from .world_node import WorldNode

    return WorldNode()


if __name__ == "__main__":
    sys.exit(main())
