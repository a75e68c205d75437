"""Who is in a ROS domain, and which publishers and subscriptions each node there has.

What a node has it tells others in one message of the middleware, and a participant may miss that message for good while
it sees the endpoints themselves (rmw_fastrtps, two processes that start together on a busy machine). So this looks with
a participant of its own, and with a fresh one where endpoints are left that belong to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import EdgeLLMError, RefusalCode

LOOK = 4.0  # s until others in the domain are known; Fast DDS repeats every 3 s what was lost at first
LOOKS = 4
UNKNOWN = "a participant without a name"  # to other software than ROS nodes have no names
_POLL = 0.05  # s
_NAMELESS = "_NODE_NAME_UNKNOWN_"


@dataclass(frozen=True)
class Endpoint:
    """A publisher or a subscription; ``node`` is the whole name of its node, or ``UNKNOWN``."""

    topic: str
    message_type: str
    node: str


@dataclass(frozen=True)
class Graph:
    """All endpoints of topics in a ROS domain, sorted."""

    publishers: tuple[Endpoint, ...]
    subscriptions: tuple[Endpoint, ...]

    @property
    def whole(self) -> bool:
        """Whether it is known whose every endpoint is."""
        return all(endpoint.node != UNKNOWN for endpoint in (*self.publishers, *self.subscriptions))

    def publishers_of(self, node: str) -> tuple[Endpoint, ...]:
        """Those of the node with this whole name."""
        return tuple(endpoint for endpoint in self.publishers if endpoint.node == node)

    def subscriptions_of(self, node: str) -> tuple[Endpoint, ...]:
        """Those of the node with this whole name."""
        return tuple(endpoint for endpoint in self.subscriptions if endpoint.node == node)

    def has(self, node: str) -> bool:
        """Whether the node of this whole name is there, with anything at all."""
        return bool(self.publishers_of(node) or self.subscriptions_of(node))


@contextmanager
def looking_node(name: str) -> Iterator[Any]:
    """A node in a participant of its own in the ROS domain of the environment, which has no endpoints.

    :raises EdgeLLMError: ROS does not let it in.
    """
    import rclpy
    from rclpy.context import Context
    from rclpy.node import Node
    from rclpy.signals import SignalHandlerOptions

    context = Context()
    try:
        try:
            rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
            node = Node(name, context=context, enable_rosout=False, start_parameter_services=False)
        except Exception as error:  # of the middleware, in whatever kinds it has
            raise EdgeLLMError(
                f"No node can be made in this ROS domain ({error}); look at the network and at RMW_IMPLEMENTATION.",
                RefusalCode.NOT_ACTIVE,
            ) from None
        yield node
        node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)


def find_graph(
    node: str,
    wait: Callable[[float], object] = time.sleep,
    looking: Callable[[str], AbstractContextManager[Any]] = looking_node,
) -> Graph:
    """The graph once the node of this whole name is in it and nothing is left unknown, or the last one seen.

    What has no name and comes from the process that publishes ``<node>/status`` is taken for the node's. ``wait``
    passes the time, in s. Takes ``LOOK`` s, and ``LOOKS`` times that where something stays unknown.

    :raises EdgeLLMError: ROS does not let a participant in.
    """
    graph = Graph((), ())
    for _ in range(LOOKS):
        with looking("edgellm_look") as eye:
            end = time.monotonic() + LOOK
            while time.monotonic() < end:
                wait(_POLL)
            graph = _seen(eye, node)
        if graph.has(node) and graph.whole:
            break
    return graph


def _seen(eye: Any, node: str) -> Graph:
    topics = [topic for topic, _ in eye.get_topic_names_and_types()]
    publishers = [(topic, info) for topic in topics for info in eye.get_publishers_info_by_topic(topic)]
    subscriptions = [(topic, info) for topic in topics for info in eye.get_subscriptions_info_by_topic(topic)]
    processes = {_participant(info) for topic, info in publishers if topic == f"{node}/status"}

    def endpoints(found: list[tuple[str, Any]]) -> tuple[Endpoint, ...]:
        named = (Endpoint(topic, info.topic_type, _owner(info, node, processes)) for topic, info in found)
        return tuple(sorted(named, key=lambda endpoint: (endpoint.topic, endpoint.node)))

    return Graph(endpoints(publishers), endpoints(subscriptions))


def _owner(info: Any, node: str, processes: set[bytes]) -> str:
    """The whole name of its node: ``node`` where it has none and is of one of these participants."""
    if info.node_name != _NAMELESS:
        return f"{info.node_namespace.rstrip('/')}/{info.node_name}"
    return node if _participant(info) in processes else UNKNOWN


def _participant(info: Any) -> bytes:
    """The first 12 bytes of an endpoint's identifier (RTPS 2.5, 8.2.4.1)."""
    return bytes(info.endpoint_gid[:12])
