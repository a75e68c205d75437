"""What a reader types reaches the node, or is refused in a sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")

from edgellm_ros.cli.assignment import assignment
from edgellm_ros.cli.demo_terminal import seed_of
from edgellm_ros.errors import RequestError
from edgellm_ros.tabletop.client import _message


@pytest.mark.parametrize(
    "typed",
    ["true", "7", "-1", "0.5", "1e-3", "text", "[a, b]", "[1, 2]", "[0.5, 1.0]", "[]", "'5'"],
)
def test_a_value_that_a_parameter_can_have_is_taken(typed):
    name, value = assignment(f"a.b={typed}")
    assert name == "a.b" and _message(name, value).name == "a.b"


@pytest.mark.parametrize(
    "typed",
    [
        "{a: 1}",
        "[1, a]",
        "[[1], [2]]",
        "2020-10-10",
        "99999999999999999999",
        "[1, 99999999999999999999]",
        '"\\ud800"',
        "!!set {a}",
        "0x" + "f" * 5000,
    ],
    ids=lambda typed: typed[:12],
)
def test_a_value_that_no_parameter_can_have_is_one_sentence(typed):
    with pytest.raises(RequestError, match=r"^'a\.b' is set to .*; want true or false, a number") as found:
        _message(*assignment(f"a.b={typed}"))
    assert len(str(found.value)) < 250


@pytest.mark.parametrize(
    "typed",
    ["", "a.b", "=5", "a.b=", "a.b=2020-13-45", "a.b=[", "a.b=!!python/name:os.system", "a.b=" + "[" * 9000],
    ids=lambda typed: typed[:14],
)
def test_what_sets_no_parameter_is_one_sentence(typed):
    with pytest.raises(RequestError, match="sets no parameter; want NAME=VALUE") as found:
        assignment(typed)
    assert len(str(found.value)) < 250


@pytest.mark.parametrize("typed", ["x", "-1", "1.5", "7 8", "\u00b2"])
def test_a_seed_that_is_none_is_refused(typed):
    with pytest.raises(RequestError, match="want a whole number"):
        seed_of(typed)
