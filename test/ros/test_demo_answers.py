"""An answer in the demonstration is shown whole, in whatever order its topics arrive."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from edgellm_ros.cli import demo as demo_module
from edgellm_ros.cli.demo import Demo

PIECES = [" A pink", " disc", " and a cube."]
REPORT = {"refusal_code": "", "completion_tokens": "7", "time_to_first_token_s": "0.05", "visual_pruning": "off"}


class Client:
    """What a question brings, one event for each spin."""

    def __init__(self, events):
        self.events = list(events)
        self.responses, self.reports = [], []
        self.on_delta = lambda piece: None

    def ask(self, question):
        pass

    def spin_once(self, timeout_sec=None):
        kind, value = self.events.pop(0) if self.events else ("nothing", None)
        if kind == "piece":
            self.on_delta(value)
        if kind == "response":
            self.responses.append(value)
        if kind == "report":
            self.reports.append(SimpleNamespace(values=[SimpleNamespace(key=k, value=v) for k, v in value.items()]))


def shown(events, capsys):
    client = Client(events)
    session = SimpleNamespace(client=client, executor=client, check=lambda: None)
    assert Demo(session).take("what is there?")
    return capsys.readouterr().out.splitlines()


EVENTS = [*(("piece", piece) for piece in PIECES), ("response", "".join(PIECES)), ("report", REPORT)]


# pieces of one topic keep their order
ORDERS = [order for order in itertools.permutations(range(5)) if [place for place in order if place < 3] == [0, 1, 2]]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(map(str, order)))
def test_the_whole_answer_is_shown_in_any_order_of_topics(order, capsys):
    first, second = shown([EVENTS[place] for place in order], capsys)
    assert first == "A pink disc and a cube." and "7 tokens, time to first token 50 ms, pruner off" in second


def test_pieces_that_never_come_are_taken_from_the_whole_answer(capsys, monkeypatch):
    monkeypatch.setattr(demo_module, "LAST_PIECES_TIMEOUT", 0.1)
    first, _ = shown([EVENTS[0], *EVENTS[3:]], capsys)
    assert first == "A pink disc and a cube."
