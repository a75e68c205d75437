"""A real node and a client on a real middleware, spun by a thread; waits have deadlines and there are no sleeps."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters, SetParametersAtomically
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from std_srvs.srv import SetBool, Trigger

from edgellm_ros.ros.client import PromptClient, pairs
from edgellm_ros.ros.lifecycle_node import EdgeLLMNode

DEADLINE = 10.0
DISCOVERY_DEADLINE = 45.0  # a lost announcement is repeated only after seconds, and a busy machine loses several
FAKE = {"engine.backend": "fake", "engine.memory_reserve_mb": 0}
_SERVICES = {
    "edgellm/change_state": ChangeState,
    "edgellm/get_state": GetState,
    "edgellm/set_parameters": SetParameters,
    "edgellm/set_parameters_atomically": SetParametersAtomically,
    "edgellm/get_parameters": GetParameters,
    "edgellm/describe_parameters": DescribeParameters,
    "edgellm/cancel": Trigger,
    "edgellm/reset": Trigger,
    "edgellm/enable": SetBool,
}
_GOALS = {
    Transition.TRANSITION_CONFIGURE: "inactive",
    Transition.TRANSITION_ACTIVATE: "active",
    Transition.TRANSITION_DEACTIVATE: "inactive",
    Transition.TRANSITION_CLEANUP: "unconfigured",
}


class NodeBench:
    """``node`` is the real thing; everything that a test asks of it goes through topics and services."""

    def __init__(
        self,
        parameters: dict[str, Any] | None = None,
        *,
        arguments: list[str] | None = None,
        namespace: str = "",
    ) -> None:
        self.context = Context()
        rclpy.init(args=arguments or [], context=self.context)
        options: dict[str, Any] = {"context": self.context, "namespace": namespace}
        values = {**FAKE, **(parameters or {})}
        self.node = EdgeLLMNode(
            parameter_overrides=[Parameter(name, value=value) for name, value in values.items()], **options
        )
        self.client = PromptClient(**options)
        self.diagnostics: dict[str, Any] = {}
        self.client.create_subscription(DiagnosticArray, "/diagnostics", self._take_diagnostics, 10)
        # Made once and early: a server that has not yet discovered the client of a request drops its answer.
        self._services = {name: self.client.create_client(kind, name) for name, kind in _SERVICES.items()}
        # The client has an executor and a thread of its own, as it would in another process.
        self._executors = []
        self._threads = []
        for node in (self.node, self.client):
            executor = SingleThreadedExecutor(context=self.context)
            executor.add_node(node)
            thread = threading.Thread(target=self._spin, args=(executor,), daemon=True)
            thread.start()
            self._executors.append(executor)
            self._threads.append(thread)

    def wait_connected(self) -> None:
        """Return when client and node have found each other."""
        conditions = {
            "the topics are connected": lambda: self.client.connected and self.client.status is not None,
            "the services are found": lambda: all(service.service_is_ready() for service in self._services.values()),
        }
        end = time.monotonic() + DISCOVERY_DEADLINE  # for both: a test has two minutes in all
        for what, condition in conditions.items():
            self.wait(condition, what, end - time.monotonic())

    def activate(self) -> None:
        """Configure and activate."""
        assert self.change(Transition.TRANSITION_CONFIGURE), self.node.state.failure
        assert self.change(Transition.TRANSITION_ACTIVATE), self.node.state.failure

    @staticmethod
    def _spin(executor: SingleThreadedExecutor) -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    def _take_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.diagnostics[status.name.partition(": ")[2]] = status

    def close(self) -> None:
        self.node.bridge.stop(_CLOSED)
        if self.node.state.host is not None:
            self.node.state.host.close()
        for executor in self._executors:
            executor.shutdown(timeout_sec=2.0)
        for thread in self._threads:
            thread.join(2.0)
        self.client.destroy_node()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)

    # -- what a test does ---------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
        """The condition's value once it is true; fails when it does not become so in time."""
        end = time.monotonic() + deadline
        while not (value := condition()):
            assert time.monotonic() < end, f"not within {deadline} s: {what}; status {self.client.status}"
            time.sleep(0.002)
        return value

    def call(self, kind: Any, name: str, request: Any, deadline: float = DEADLINE) -> Any:
        """The response of a service, asked by the client."""
        assert isinstance(request, kind.Request), name
        future = self._services[name].call_async(request)
        self.wait(future.done, f"{name} answers", deadline)
        return future.result()

    def change(self, transition: int) -> bool:
        """Ask for a transition; whether it succeeded. An answer that was lost on the way is told by the state."""
        request = ChangeState.Request(transition=Transition(id=transition))
        goal = _GOALS.get(transition)
        future = self._services["edgellm/change_state"].call_async(request)
        patience = time.monotonic() + DEADLINE

        def told() -> bool:
            reached = self.node.parameters.lifecycle() == goal
            return future.done() or (reached and time.monotonic() > patience)

        self.wait(told, f"transition {transition}", DISCOVERY_DEADLINE)
        return bool(future.result().success) if future.done() else True

    @property
    def lifecycle(self) -> str:
        return str(self.call(GetState, "edgellm/get_state", GetState.Request()).current_state.label)

    def set(self, **changes: Any) -> list[str]:
        """Set parameters (``__`` for the dot) one by one; the reason of each, empty where it was set."""
        request = SetParameters.Request(parameters=_messages(changes))
        results = self.call(SetParameters, "edgellm/set_parameters", request).results
        return [result.reason if not result.successful else "" for result in results]

    def set_atomically(self, **changes: Any) -> str:
        request = SetParametersAtomically.Request(parameters=_messages(changes))
        result = self.call(SetParametersAtomically, "edgellm/set_parameters_atomically", request).result
        return "" if result.successful else str(result.reason)

    def get(self, name: str) -> Any:
        request = GetParameters.Request(names=[name])
        (value,) = self.call(GetParameters, "edgellm/get_parameters", request).values
        return rclpy.parameter.parameter_value_to_python(value)

    def describe(self, name: str) -> Any:
        request = DescribeParameters.Request(names=[name])
        return self.call(DescribeParameters, "edgellm/describe_parameters", request).descriptors[0]

    def trigger(self, name: str) -> str:
        return str(self.call(Trigger, f"edgellm/{name}", Trigger.Request()).message)

    def enable(self, on: bool) -> str:
        return str(self.call(SetBool, "edgellm/enable", SetBool.Request(data=on)).message)

    def ask(self, *prompts: str, responses: bool = True) -> list[dict[str, str]]:
        """Publish prompts and wait until they have ended and all of it has arrived; the pairs of their reports.

        Topics are not ordered among each other, so what an earlier request said must be in before the next.
        """
        reports, texts = len(self.client.reports), len(self.client.responses)
        for prompt in prompts:
            self.client.ask(prompt)
        wanted = reports + len(prompts)
        self.wait(lambda: len(self.client.reports) >= wanted, f"{wanted} reports")
        if responses:
            self.wait(lambda: len(self.client.responses) >= texts + len(prompts), "as many responses")
        found = [pairs(report) for report in self.client.reports]
        deltas = sum(int(report["delta_count"]) for report in found)
        self.wait(lambda: len(self.client.deltas) >= deltas, f"{deltas} pieces")
        return found[reports:wanted]

    def answer(self, prompt: str) -> tuple[str, dict[str, str]]:
        """The whole text and the report of one prompt; its pieces must join to the text."""
        deltas = len(self.client.deltas)
        (report,) = self.ask(prompt)
        text = self.client.responses[-1]
        assert "".join(self.client.deltas[deltas:]) == text
        return text, report

    def wait_running(self) -> None:
        self.wait(lambda: self.node.bridge.load[0], "a request runs")


def _messages(changes: dict[str, Any]) -> list[Any]:
    return [Parameter(name.replace("__", "."), value=value).to_parameter_msg() for name, value in changes.items()]


def _closed() -> Any:
    from edgellm_ros.errors import Refusal, RefusalCode

    return Refusal(RefusalCode.SHUTTING_DOWN, "The test is over.")


_CLOSED = _closed()
