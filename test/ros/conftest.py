"""A node, a client beside it and a thread that spins both, in a context of their own for each test.

The environment (domain, discovery range, profile, log folder) is set by the conftest of the folder above, before
anything imports rclpy.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Another run of these tests may go on beside this one: take the first domain nobody holds, for this process's life.
_lock_files = []


def _hold_a_domain() -> None:
    for domain in range(1, 102):
        file = (Path(tempfile.gettempdir()) / f"edgellm-test-domain-{domain}.lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        _lock_files.append(file)
        os.environ["ROS_DOMAIN_ID"] = str(domain)
        return


_hold_a_domain()


@pytest.fixture(scope="session", autouse=True)
def _release_the_domain() -> Iterator[None]:
    yield
    for file in _lock_files:
        file.close()


@pytest.fixture
def start_node() -> Iterator[Callable[..., object]]:
    """A function that starts a node with these parameters; all are stopped at the end of the test."""
    from node_bench import NodeBench

    benches: list[NodeBench] = []

    def start(parameters: dict[str, object] | None = None, **options: object) -> NodeBench:
        benches.append(NodeBench(parameters, **options))  # type: ignore[arg-type]
        return benches[-1]

    yield start
    for bench in benches:
        bench.close()
