"""Nodes in processes of their own and a client in this one, in a ROS domain that only this machine sees."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import EdgeLLMError, MissingPackageError, RefusalCode
from ..ros.surroundings import LAST_DOMAIN as LAST_DOMAIN  # part of this module for its callers

if TYPE_CHECKING:
    from ..ros.client import PromptClient
    from ..ros.launch_spec import NodeSpec
    from ..ros.node_process import NodeProcess

START_TIMEOUT = 120.0  # s until the node is active
LAST_PIECES_TIMEOUT = 5.0  # s for what is still on its way when an answer is complete


def say(text: str) -> None:
    """One line for the reader."""
    print(text, flush=True)


def set_environment(domain: int | None) -> None:
    """Keep the talk on this machine and in a domain of its own; must come before rclpy is imported.

    :raises EdgeLLMError: the domain is out of range.
    """
    if domain is not None and not 0 <= domain <= LAST_DOMAIN:
        raise EdgeLLMError(f"--domain is {domain}; want 0 to {LAST_DOMAIN}.", RefusalCode.BAD_PARAMETER)
    os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % LAST_DOMAIN if domain is None else domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    if os.environ.get("ROS_DISTRO") == "humble":  # which does not know the range
        os.environ["ROS_LOCALHOST_ONLY"] = "1"
    find_profile()


def find_profile() -> None:
    """Give Fast DDS its profile, where it has none, and let ROS find its packages; before rclpy is imported."""
    from ..ros.launch_spec import profile_environment

    find_packages()
    os.environ.update(profile_environment(os.environ))


def find_packages() -> None:
    """Let ROS find its packages where they are wheels; before rclpy is imported."""
    os.environ.setdefault("AMENT_PREFIX_PATH", sys.prefix)


def domain_text() -> str:
    """The settings with which another terminal reaches the node."""
    return f"ROS_DOMAIN_ID={os.environ['ROS_DOMAIN_ID']} ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST"


class NodeSession:
    """Processes that run, the client and the executor that spins it; ``exit_codes`` is filled when it is left."""

    def __init__(self, processes: Sequence[NodeProcess], client: Any, executor: Any, names: Sequence[str]) -> None:
        self.processes, self.client, self.executor = tuple(processes), client, executor
        self.names = tuple(names)
        self.exit_codes: list[int] = []

    @property
    def ended(self) -> bool:
        """Whether a process has ended that should run."""
        return any(process.exit_code is not None for process in self.processes)

    def why_ended(self) -> str:
        """Which process ended and how, in one sentence; empty while all run."""
        for name, process in zip(self.names, self.processes, strict=True):
            code = process.exit_code
            if code is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                return f"the node {name} {how}, and nothing goes on without it; start again."
        return ""

    def check(self) -> None:
        """:raises EdgeLLMError: a process has ended that should run."""
        if self.ended:
            raise EdgeLLMError(self.why_ended(), RefusalCode.NOT_ACTIVE)

    def output(self) -> str:
        """All that the processes wrote."""
        return "".join(process.output() for process in self.processes)


@contextmanager
def node_session(
    specs: Sequence[NodeSpec], make_client: Callable[[NodeSpec], PromptClient], *, quiet: bool = False
) -> Iterator[NodeSession]:
    """Start the nodes of these specs, the last of which takes prompts, and wait until it is active.

    ``make_client`` is called with the last spec when rclpy is initialised. At the end all are stopped, the last first.

    :raises EdgeLLMError: a node ended, could not load its engine, or took too long; what it wrote is in the message.
    """
    import rclpy

    from ..ros.node_process import NodeProcess

    start = time.monotonic()
    with ExitStack() as stack:
        processes = [stack.enter_context(NodeProcess(spec)) for spec in specs]
        names = [spec.name for spec in specs]
        session = _session(stack, processes, names, lambda: make_client(specs[-1]), start)
        if not quiet:
            say(f"Node active after {time.monotonic() - start:.1f} s: process {processes[-1].pid}, {domain_text()}.")
        yield session
        rclpy.try_shutdown()
        session.exit_codes = [process.stop() for process in reversed(processes)]


@contextmanager
def attached_session(name: str, make_client: Callable[[], PromptClient]) -> Iterator[NodeSession]:
    """The same with a node that somebody else starts, or has started, in the ROS domain of the environment.

    ``name`` is its whole name.

    :raises EdgeLLMError: it could not load its engine, or is not active in time.
    """
    with ExitStack() as stack:
        yield _session(stack, (), (name,), make_client, time.monotonic())


def _session(
    stack: ExitStack,
    processes: Sequence[NodeProcess],
    names: Sequence[str],
    make_client: Callable[[], PromptClient],
    start: float,
) -> NodeSession:
    """A client that spins beside the processes, and an active node; ``stack`` ends it."""
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.signals import SignalHandlerOptions

    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    stack.callback(rclpy.try_shutdown)
    client = make_client()
    executor = SingleThreadedExecutor()
    executor.add_node(client)
    session = NodeSession(processes, client, executor, names)
    _wait_until_active(session, start)
    return session


def check_ros() -> None:
    """:raises MissingPackageError: there is no ROS."""
    try:
        import rclpy  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"rclpy cannot be imported ({error}); source a ROS 2 installation or run 'make setup'."
        ) from None


def keep(session: NodeSession, *hints: str) -> None:
    """Say how to reach the node from elsewhere; wait for Ctrl-C or the end of a process."""
    try:
        say(f"\nThe node runs until Ctrl-C. From another terminal, with {domain_text()}:")
        for hint in hints:
            say(f"  {hint}")
        while not session.ended:
            time.sleep(0.2)
    except KeyboardInterrupt:
        say("")


@contextmanager
def _elapsed_line(text: str) -> Iterator[Any]:
    """Gives a function to call now and then; from the second second on it shows how long this takes."""
    start, shown = time.monotonic(), 0

    def tick(detail: str = "") -> None:
        nonlocal shown
        seconds = int(time.monotonic() - start)
        if seconds <= shown:
            return
        shown = seconds
        line = f"{text} {seconds} s {detail}".rstrip()
        print(f"\r{line}\033[K" if sys.stderr.isatty() else line, end="", file=sys.stderr, flush=True)
        if not sys.stderr.isatty():
            print(file=sys.stderr)

    try:
        yield tick
    finally:
        if shown and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _wait_until_active(session: NodeSession, start: float) -> None:
    from ..ros.client import spin_until

    client, name = session.client, session.names[-1]
    with _elapsed_line("Starting the node:" if session.processes else f"Waiting for {name}:") as tick:
        while not (client.lifecycle == "active" and client.connected):
            spin_until(session.executor, lambda: client.lifecycle == "active" and client.connected, 0.2)
            sentence = client.status.message if client.status else ""
            if client.status is not None and client.status.level == b"\x02":
                raise EdgeLLMError(f"the node {name} did not become active: {sentence}", RefusalCode.NOT_ACTIVE)
            tick(sentence)
            if session.ended:
                raise EdgeLLMError(f"{session.why_ended()}\n{session.output()}".rstrip(), RefusalCode.NOT_ACTIVE)
            if time.monotonic() - start > START_TIMEOUT:
                others = "" if session.processes else _elsewhere(client)
                said = f"; it says {sentence!r}" if sentence else others
                raise EdgeLLMError(
                    f"the node {name} did not become active within {START_TIMEOUT:g} s{said}.\n"
                    f"{session.output()}".rstrip(),
                    RefusalCode.NOT_ACTIVE,
                )


def _elsewhere(client: PromptClient) -> str:
    """Which other nodes of this package say how they are."""
    found = [
        topic.removesuffix("/status")
        for topic, kinds in client.get_topic_names_and_types()
        if kinds == ["diagnostic_msgs/msg/DiagnosticStatus"] and client.count_publishers(topic)
    ]
    return f"; {', '.join(found)} is there: name it with --node" if found else ""
