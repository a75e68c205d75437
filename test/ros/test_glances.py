"""Events of the middleware take no part in an executor's wait but behind a look, whoever created their owners."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import rclpy
from node_bench import NodeBench
from rclpy.context import Context
from rclpy.node import Node
from std_msgs.msg import String

from edgellm_ros.ros.glances import EVENT_TIME, EventHandler, GlancingGroup
from edgellm_ros.ros.on_demand import OnDemandGroup


@pytest.fixture
def node() -> Iterator[Node]:
    context = Context()
    rclpy.init(context=context)
    node = Node("glances", context=context)
    yield node
    node.destroy_node()
    rclpy.try_shutdown(context=context)


@pytest.mark.parametrize(("group", "at_once"), [(GlancingGroup(), True), (OnDemandGroup(), False)], ids=type)
def test_events_wait_for_a_look(node, group, at_once):
    subscription = node.create_subscription(String, "topic", lambda _: None, 1, callback_group=group)
    events = subscription.event_handlers
    assert events
    assert group.can_execute(subscription) is at_once
    assert not any(map(group.can_execute, events))
    group.look()
    assert all(map(group.can_execute, events))
    assert group.can_execute(subscription) is at_once
    time.sleep(2 * EVENT_TIME)
    assert not any(map(group.can_execute, events))


def test_all_events_of_a_node_wait_for_its_looks(start_node: Callable[..., NodeBench]) -> None:
    node = start_node().node
    events = [waitable for waitable in node.waitables if isinstance(waitable, EventHandler)]
    assert len(events) > 10
    assert all(isinstance(event.callback_group, GlancingGroup) for event in events)
    assert node.default_callback_group is node.default_callback_group
