"""Runs one node in a process of its own: signals, command line, executor, exit code.

Signals are blocked in every thread and taken by one that waits for them. So an interrupt never lands inside a
callback, there is no traceback, and the requests that run are ended and told about while the node can still publish;
the handlers of rclpy would close the context first. Threads that were there before have their signals open, so this
module, and what starts it, import nothing that makes some (numpy does).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

EXIT_LIMIT = 1.8  # s from a signal to the end of the process
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Set by SIGINT, SIGTERM, or SIGHUP (a terminal that closes) unless that is ignored, as under ``nohup``.

    If the process is still there ``EXIT_LIMIT`` s later, it is ended.
    """

    def __init__(self) -> None:
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._signals = _SIGNALS if ignored else (*_SIGNALS, signal.SIGHUP)
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        self._stop = threading.Event()
        self.wake: Callable[[], None] = lambda: None  # called when a signal has come, from another thread
        self.idle: Callable[[], bool] = lambda: True  # whether ending the process now loses nothing
        threading.Thread(target=self._wait, name="edgellm-signals", daemon=True).start()

    def __bool__(self) -> bool:
        return self._stop.is_set()

    def _wait(self) -> None:
        signal.sigwait(self._signals)
        self._stop.set()
        timer = threading.Timer(EXIT_LIMIT, self._force)
        timer.daemon = True
        timer.start()
        with suppress(Exception):  # the main thread may have seen it already and closed what would be woken
            self.wake()

    def _force(self) -> None:
        # The main thread is inside a call that does not return: an engine being loaded, or one that hangs.
        os._exit(0 if self.idle() else 1)


def run_node(
    name: str,
    make_node: Callable[[], Any],
    arguments: Sequence[str] | None = None,
    *,
    idle: Callable[[Any], bool] = lambda node: True,
    shut_down: Callable[[Any], None] = lambda node: None,
) -> int:
    """Run a node until a signal or a shutdown of its context; 0 is a clean end, 2 a command line it cannot take.

    ``make_node`` is called with rclpy initialised. ``idle`` says of the node whether ending the process loses nothing;
    ``shut_down`` is called while it can still publish. ``name`` is the logger's for what keeps it from starting.
    """
    stop = StopSignal()
    # Imported here: an interrupt during the imports is already taken care of.
    import rclpy
    from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
    from rclpy.signals import SignalHandlerOptions
    from rclpy.utilities import remove_ros_args

    from ..errors import EdgeLLMError

    command_line = list(sys.argv if arguments is None else [sys.argv[0], *arguments])
    try:
        rest = remove_ros_args(command_line)[1:]
        if rest:
            raise EdgeLLMError(f"The argument {rest[0]} is unknown; want ROS arguments after --ros-args.")
        rclpy.init(args=command_line, signal_handler_options=SignalHandlerOptions.NO)
        node = make_node()
    except Exception as error:  # of ROS: a file that is not there, an override that is no policy, and the like
        sentence = str(error) if isinstance(error, EdgeLLMError) else f"The node cannot start: {error}"
        rclpy.logging.get_logger(name).fatal(" ".join(sentence.split()))
        rclpy.try_shutdown()
        return 2
    # One thread is enough, since no callback waits for the engine, and it answers sooner than several would.
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    stop.wake = lambda: executor.create_task(lambda: None)
    stop.idle = lambda: idle(node)
    try:
        while not stop and rclpy.ok():
            try:
                executor.spin_once()
            except ExternalShutdownException:
                break
            except Exception as error:  # of rclpy itself: the node's own callbacks let nothing out
                sentence = f"A callback failed: {type(error).__name__}: {error}"
                node.get_logger().warning(sentence, throttle_duration_sec=1.0)
        shut_down(node)
        executor.shutdown(timeout_sec=0.2)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    return 0
