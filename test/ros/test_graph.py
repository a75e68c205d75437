"""Whose publishers and subscriptions those of a ROS domain are, also where the middleware lost the names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")

import rclpy
from rclpy.context import Context
from std_msgs.msg import String

from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.ros.graph import LOOK, LOOKS, UNKNOWN, Endpoint, Graph, find_graph, looking_node

KIND = "std_msgs/msg/String"


class Eye:
    """A participant that knows the names of some nodes alone; ``gone`` ones it has not even heard of."""

    def __init__(self, known: set[str], gone: set[str]) -> None:
        self.known, self.gone = known, gone

    def get_topic_names_and_types(self) -> list[tuple[str, list[str]]]:
        return [("/answer", [KIND]), ("/prompt", [KIND])]

    def _info(self, node: str) -> list[Any]:
        if node in self.gone:
            return []
        name = node if node in self.known else "_NODE_NAME_UNKNOWN_"
        gid = [len(node)] * 12 + [0, 0, 1, 3]
        return [SimpleNamespace(topic_type=KIND, node_name=name, node_namespace="/left", endpoint_gid=gid)]

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        return self._info("server" if topic == "/answer" else "player")

    def get_subscriptions_info_by_topic(self, topic: str) -> list[Any]:
        return self._info("player" if topic == "/answer" else "server")


class Eyes:
    """Fresh participants one after another, of which only some have got the names."""

    def __init__(self, *eyes: Eye) -> None:
        self.eyes, self.opened, self.closed = list(eyes), 0, 0
        self.seconds = 0.0

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    @contextmanager
    def looking(self, name: str) -> Iterator[Eye]:
        self.opened += 1
        yield self.eyes[min(self.opened, len(self.eyes)) - 1]
        self.closed += 1


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgellm_ros.ros.graph.LOOK", 0.05)


BOTH: set[str] = {"server", "player"}
WHOLE = Graph(
    (Endpoint("/answer", KIND, "/left/server"), Endpoint("/prompt", KIND, "/left/player")),
    (Endpoint("/answer", KIND, "/left/player"), Endpoint("/prompt", KIND, "/left/server")),
)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    "missed",
    [Eye(set(), set()), Eye({"player"}, set()), Eye({"server"}, set()), Eye(BOTH, {"server"}), Eye(BOTH, BOTH)],
    ids=["no names", "not the server's", "not another's", "not the server", "nobody"],
)
def test_what_one_participant_missed_a_fresh_one_sees(missed: Eye) -> None:
    eyes = Eyes(missed, missed, Eye(BOTH, set()))
    assert find_graph("/left/server", eyes.wait, eyes.looking) == WHOLE
    assert eyes.opened == eyes.closed == 3


@pytest.mark.usefixtures("_quick")
def test_what_never_has_a_name_is_not_waited_for_for_ever() -> None:
    eyes = Eyes(Eye({"server"}, set()))
    graph = find_graph("/left/server", eyes.wait, eyes.looking)
    assert eyes.opened == eyes.closed == LOOKS
    assert graph.has("/left/server") and not graph.whole
    assert graph.subscriptions == (Endpoint("/answer", KIND, UNKNOWN), Endpoint("/prompt", KIND, "/left/server"))


def test_a_domain_is_seen_as_it_is() -> None:
    context = Context()
    rclpy.init(args=[], context=context)
    try:
        node = rclpy.create_node("talker", namespace="/left", context=context, enable_rosout=False)
        node.create_publisher(String, "answer", 1)
        node.create_subscription(String, "/prompt", lambda _: None, 1)
        graph = find_graph("/left/talker")
    finally:
        rclpy.try_shutdown(context=context)
    assert graph.whole and LOOK >= 3.0  # what is lost at first is repeated every 3 s
    assert Endpoint("/left/answer", KIND, "/left/talker") in graph.publishers_of("/left/talker")
    assert [one.topic for one in graph.subscriptions_of("/left/talker")] == ["/prompt"]
    assert not graph.has("/talker")


def nameless(infos: Callable[[str], list[Any]]) -> Callable[[str], list[Any]]:
    def without_names(topic: str) -> list[Any]:
        found = infos(topic)
        for info in found:
            info.node_name = info.node_namespace = "_NODE_NAME_UNKNOWN_"
        return found

    return without_names


def test_a_node_whose_name_never_comes_is_known_by_its_status() -> None:
    """Identifiers of real endpoints tell which of them are of one process."""

    @contextmanager
    def looking(name: str) -> Iterator[Any]:
        with looking_node(name) as eye:
            eye.get_publishers_info_by_topic = nameless(eye.get_publishers_info_by_topic)
            eye.get_subscriptions_info_by_topic = nameless(eye.get_subscriptions_info_by_topic)
            yield eye

    contexts, nodes = [Context(), Context()], []  # a node that nobody holds goes away
    try:
        for context, name in zip(contexts, ("talker", "other"), strict=True):
            rclpy.init(args=[], context=context)
            nodes.append(node := rclpy.create_node(name, namespace="/left", context=context, enable_rosout=False))
            node.create_publisher(String, "~/status", 1)
            node.create_subscription(String, f"/to_{name}", lambda _: None, 1)
        graph = find_graph("/left/talker", looking=looking)
    finally:
        for context in contexts:
            rclpy.try_shutdown(context=context)
    assert [one.topic for one in graph.subscriptions_of("/left/talker")] == ["/to_talker"]
    assert Endpoint("/to_other", KIND, UNKNOWN) in graph.subscriptions and not graph.whole


def test_a_domain_that_lets_nobody_in_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no free port")

    monkeypatch.setattr("rclpy.node.Node.__init__", refuse)
    with (
        pytest.raises(EdgeLLMError, match=r"No node can be made in this ROS domain \(no free port\)"),
        looking_node("eye"),
    ):
        pass
