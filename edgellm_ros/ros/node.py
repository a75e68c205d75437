"""The process ``edgellm_node``: signals, executor, exit code.

Signals are blocked in every thread and taken by one that waits for them. So an interrupt never lands inside a
callback, there is no traceback, and the requests that run are ended and told about while the node can still publish;
the handlers of rclpy would close the context first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

EXIT_LIMIT = 1.8  # s from a signal to the end of the process
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Set by SIGINT or SIGTERM; if the process is still there ``EXIT_LIMIT`` s later, it is ended."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._stop = threading.Event()
        self.wake: Callable[[], None] = lambda: None  # called when a signal has come, from another thread
        self.idle: Callable[[], bool] = lambda: True  # whether ending the process now loses nothing
        threading.Thread(target=self._wait, name="edgellm-signals", daemon=True).start()

    def __bool__(self) -> bool:
        return self._stop.is_set()

    def _wait(self) -> None:
        signal.sigwait(_SIGNALS)
        self._stop.set()
        timer = threading.Timer(EXIT_LIMIT, self._force)
        timer.daemon = True
        timer.start()
        self.wake()

    def _force(self) -> None:
        # The main thread is inside a call that does not return: an engine being loaded, or one that hangs.
        os._exit(0 if self.idle() else 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node until a signal or a shutdown of its context; 0 is a clean end, 2 a command line it cannot take."""
    stop = StopSignal()
    # Imported here: an interrupt during the imports is already taken care of.
    import rclpy
    from rclpy.executors import ExternalShutdownException
    from rclpy.utilities import remove_ros_args

    from ..errors import EdgeLLMError

    command_line = list(sys.argv if arguments is None else [sys.argv[0], *arguments])
    try:
        rest = remove_ros_args(command_line)[1:]
        if rest:
            raise EdgeLLMError(f"The argument {rest[0]} is unknown; want ROS arguments after --ros-args.")
        node = make_node(command_line)
    except Exception as error:  # of ROS: a file that is not there, an override that is no policy, and the like
        sentence = str(error) if isinstance(error, EdgeLLMError) else f"The node cannot start: {error}"
        rclpy.logging.get_logger("edgellm").fatal(" ".join(sentence.split()))
        rclpy.try_shutdown()
        return 2
    executor = make_executor()
    executor.add_node(node)
    stop.wake = lambda: executor.create_task(lambda: None)
    stop.idle = lambda: node.bridge.load == (False, 0)
    try:
        while not stop and rclpy.ok():
            try:
                executor.spin_once()
            except ExternalShutdownException:
                break
            except Exception as error:  # of rclpy itself: the node's own callbacks let nothing out
                node.warn("executor", f"A callback failed: {type(error).__name__}: {error}")
        shut_down(node)
        executor.shutdown(timeout_sec=0.2)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    return 0


def make_node(command_line: Sequence[str]) -> Any:
    """The node in the default context.

    :raises EdgeLLMError: a parameter is refused; ROS raises errors of its own for what it cannot read.
    """
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from .lifecycle_node import EdgeLLMNode

    rclpy.init(args=list(command_line), signal_handler_options=SignalHandlerOptions.NO)
    return EdgeLLMNode()


def make_executor() -> Any:
    """The executor that the process spins.

    One thread is enough, since no callback waits for the engine, and it answers sooner than several would.
    """
    from rclpy.executors import SingleThreadedExecutor

    return SingleThreadedExecutor()


def shut_down(node: Any) -> None:
    """End what runs, tell about it, and bring the node to its last state."""
    if node.parameters.lifecycle() in ("unconfigured", "inactive", "active"):
        node.trigger_shutdown()
    node.outputs.flush(0.2)


if __name__ == "__main__":
    sys.exit(main())
