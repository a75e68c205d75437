"""Start the node in a process of its own, publish a prompt on its topic from this one and print the streamed answer.

The engine directory (SmolLM2-135M-Instruct, int8) is built the first time. Both processes talk on this machine only.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EdgeLLMError, MissingPackageError, RefusalCode

if TYPE_CHECKING:
    from ..ros.client import PromptClient
    from ..ros.node_process import NodeProcess

PROMPT = "What is gravity?"
START_TIMEOUT = 120.0  # s until the node is active
ANSWER_TIMEOUT = 120.0  # s until the answer is complete
LAST_PIECES_TIMEOUT = 5.0  # s for what is still on its way when the answer is complete
LAST_DOMAIN = 101  # ports of higher ROS domains lie where Linux puts those of clients


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--prompt", default=PROMPT, help="what to ask (default: %(default)r)")
    parser.add_argument("--keep", action="store_true", help="leave the node running until Ctrl-C")
    parser.add_argument(
        "--engine-dir", type=Path, default=default_engine_directory(), help="engine directory (default: %(default)s)"
    )
    parser.add_argument("--domain", type=int, help=f"ROS domain, 0 to {LAST_DOMAIN} (default: one for this process)")


def default_engine_directory() -> Path:
    """Where the demo's engine directory lies."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "edgellm" / "smollm2-135m-instruct-int8"


def run(arguments: argparse.Namespace) -> int:
    """0 when an answer came as it should, 1 when not."""
    directory = build(arguments.engine_dir)
    set_environment(arguments.domain)
    try:
        import rclpy
    except ImportError as error:
        raise MissingPackageError(
            f"rclpy cannot be imported ({error}); source a ROS 2 installation or run 'make setup'."
        ) from None
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.signals import SignalHandlerOptions

    from ..ros.client import PromptClient
    from ..ros.launch_spec import node_specs
    from ..ros.node_process import NodeProcess

    (spec,) = node_specs({"engine_dir": str(directory)})
    start = time.monotonic()
    with NodeProcess(spec) as process:
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        try:
            client = PromptClient(server=spec.name)
            executor = SingleThreadedExecutor()
            executor.add_node(client)
            wait_until_active(client, executor, process, start)
            say(f"Node active after {time.monotonic() - start:.1f} s: process {process.pid}, {domain_text()}.")
            good = ask(client, executor, process, arguments.prompt)
            say(f"Engine directory: {directory}")
            if arguments.keep and good:
                keep(process)
        finally:
            rclpy.try_shutdown()
        code = process.stop()
    if code != 0:
        say(f"The node ended with exit code {code}.")
    return 0 if good and code == 0 else 1


def say(text: str) -> None:
    """One line for the reader."""
    print(text, flush=True)


def build(directory: Path) -> Path:
    """Make the engine directory unless it is there."""
    from ..engine_format import open_engine_directory
    from ..errors import EngineDirectoryError

    try:
        open_engine_directory(directory)
        say(f"Engine directory: {directory} (already built)")
        return directory
    except EngineDirectoryError:
        pass
    from ..builder.build import build_engine
    from .build import ProgressLine

    say(f"Building {directory} from the SmolLM2-135M-Instruct weights (int8); this is done once.")
    start, progress = time.monotonic(), ProgressLine()
    try:
        build_engine("smollm2", directory, precision="int8", progress=progress)
    finally:
        progress.close()
    say(f"Built in {time.monotonic() - start:.1f} s.")
    return directory


def set_environment(domain: int | None) -> None:
    """Keep the talk on this machine and in a domain of its own; must come before rclpy is imported.

    :raises EdgeLLMError: the domain is out of range.
    """
    if domain is not None and not 0 <= domain <= LAST_DOMAIN:
        raise EdgeLLMError(f"--domain is {domain}; want 0 to {LAST_DOMAIN}.", RefusalCode.BAD_PARAMETER)
    from ..ros.launch_spec import profile_environment

    os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % LAST_DOMAIN if domain is None else domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    if os.environ.get("ROS_DISTRO") == "humble":  # which does not know the range
        os.environ["ROS_LOCALHOST_ONLY"] = "1"
    os.environ.setdefault("AMENT_PREFIX_PATH", sys.prefix)
    os.environ.update(profile_environment(os.environ))


def domain_text() -> str:
    """The settings with which another terminal reaches the node."""
    return f"ROS_DOMAIN_ID={os.environ['ROS_DOMAIN_ID']} ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST"


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


def wait_until_active(client: PromptClient, executor: Any, process: NodeProcess, start: float) -> None:
    """Return when the node takes prompts.

    :raises EdgeLLMError: it ended, could not load its engine, or took too long; what it wrote is shown.
    """
    from ..ros.client import spin_until

    with _elapsed_line("Starting the node:") as tick:
        while not (client.lifecycle == "active" and client.connected):
            spin_until(executor, lambda: client.lifecycle == "active" and client.connected, 0.2)
            sentence = client.status.message if client.status else ""
            tick(sentence)
            failed = client.status is not None and client.status.level == b"\x02"
            if failed or process.exit_code is not None or time.monotonic() - start > START_TIMEOUT:
                why = sentence or f"it ended with exit code {process.exit_code}"
                raise EdgeLLMError(f"the node did not become active: {why}\n{process.output()}", RefusalCode.NOT_ACTIVE)


def ask(client: PromptClient, executor: Any, process: NodeProcess, prompt: str) -> bool:
    """Publish the prompt, print the pieces as they come, then the figures; False when the answer is not whole."""
    from ..ros.client import pairs, spin_until

    say(f"\nPrompt: {prompt}\n")
    client.on_delta = lambda text: print(text, end="", flush=True)
    client.ask(prompt)
    ended = spin_until(
        executor,
        lambda: bool(client.reports and client.responses) or process.exit_code is not None,
        ANSWER_TIMEOUT,
    )
    # Topics are not ordered among each other: the last pieces may come after the whole text.
    whole = ended and spin_until(executor, lambda: "".join(client.deltas) in client.responses, LAST_PIECES_TIMEOUT)
    print("\n", flush=True)
    if not ended or not client.reports or not client.responses:
        say(f"No answer came.\n{process.output()}")
        return False
    report = client.reports[-1]
    values = pairs(report)
    if values["refusal_code"]:
        say(f"No answer ({values['refusal_code']}): {report.message}")
        return False
    say(
        f"{values['completion_tokens']} tokens, {float(values['tokens_per_second'] or 0):.1f} tokens/s, "
        f"time to first token {1000 * float(values['time_to_first_token_s'] or 0):.0f} ms "
        f"(seed {values['seed']}, {values['finish_reason']})"
    )
    if not whole:
        say("The streamed pieces do not join to the whole answer.")
        return False
    return True


def keep(process: NodeProcess) -> None:
    """Wait for Ctrl-C or the end of the node."""
    try:
        say(f"\nThe node runs until Ctrl-C. From another terminal, with {domain_text()}:")
        say("  ros2 topic pub --once /prompt std_msgs/msg/String \"{data: 'Tell me a joke.'}\"")
        say("  ros2 topic echo /response/delta --field data")
        while process.exit_code is None:
            time.sleep(0.2)
    except KeyboardInterrupt:
        say("")
