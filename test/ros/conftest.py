"""A node, a client beside it and threads that spin both, in a context of their own for each test.

The environment (domain, discovery range, profile, log folder) is set by the conftest of the folder above, before
anything imports rclpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from node_bench import NodeBench


@pytest.fixture(autouse=True)
def _own_domain(other_domain: None) -> None:
    """What is left of an earlier test cannot be taken for a part of this one.

    A client counts the servers that it sees: one that goes late takes the one that stays with it, and the client waits
    for ever.
    """


@pytest.fixture
def start_node() -> Iterator[Callable[..., NodeBench]]:
    """A function that starts a node with these parameters; all are stopped at the end of the test."""
    from node_bench import NodeBench

    benches: list[NodeBench] = []

    def start(parameters: dict[str, object] | None = None, *, active: bool = True, **options: object) -> NodeBench:
        bench = NodeBench(parameters, **options)  # type: ignore[arg-type]
        benches.append(bench)
        bench.wait_connected()
        if active:
            bench.activate()
        return bench

    yield start
    for bench in benches:
        bench.close()
