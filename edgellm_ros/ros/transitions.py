"""Transitions that tell why they fail, and that a request for an impossible one cannot break."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn

from ..errors import EdgeLLMError
from .memory import release_memory
from .publishers import publishable

if TYPE_CHECKING:
    from .lifecycle_node import EdgeLLMNode

_Callback = Callable[["EdgeLLMNode", LifecycleState], TransitionCallbackReturn]


def transition(on_exception: TransitionCallbackReturn) -> Callable[[_Callback], _Callback]:
    """Make a transition tell why it failed; rclpy itself drops the exception without a word."""

    def wrap(callback: _Callback) -> _Callback:
        @functools.wraps(callback)
        def wrapped(self: EdgeLLMNode, state: LifecycleState) -> TransitionCallbackReturn:
            name = callback.__name__.removeprefix("on_")
            try:
                result = callback(self, state)
            except Exception as error:
                sentence = str(error) if isinstance(error, EdgeLLMError) else f"{type(error).__name__}: {error}"
                sentence = publishable(sentence)  # or the logger raises in turn, out of the transition
                self.get_logger().error(f"{name} failed: {sentence}")
                self.state.failure = sentence
            else:
                if name != "error":  # what led there stays to be told
                    self.state.failure = ""
                return result
            release_memory()  # after the exception, whose frames hold what was half made
            return on_exception

        return wrapped

    return wrap


def refuse_impossible_transitions(node: EdgeLLMNode) -> None:
    """Answer an impossible transition with a no; rclpy raises it out of the executor and the process ends."""
    service = node._service_change_state
    original = service.callback

    def change_state(request: Any, response: Any) -> Any:
        before = node.parameters.lifecycle()
        try:
            response = original(request, response)
        except Exception as error:
            wanted = request.transition.label or f"number {request.transition.id}"
            node.get_logger().warning(f"Transition {wanted} is not possible while the node is {before}: {error}")
            response.success = False
        node.guarded(node.monitor.tick)()
        return response

    service.callback = change_state
