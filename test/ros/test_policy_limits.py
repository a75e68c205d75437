"""What does not fit a policy is refused, and a chunk beyond a limit moves nothing."""

from __future__ import annotations

import pytest
from lifecycle_msgs.msg import Transition
from policy_bench import TASK, show


def test_a_chunk_beyond_a_limit_holds_the_robot_and_says_which_joint(start_policy):
    bench, robot = start_policy({"safety.upper": [100.0, -100.0, 100.0, 100.0], "action.noise_mode": "fixed"})
    show(bench, robot)
    (report,) = bench.ask(TASK)
    assert report["seed"] == "5"
    assert "lift" in report["refusal"] and "above its upper limit" in report["refusal"]
    bench.wait(lambda: robot.trajectories, "the hold arrives")
    assert not robot.trajectories[0].points and not robot.chunks


UNFIT = [
    ("safety.max_step", [0.1], "safety.max_step has 1 entries; want 4"),
    ("safety.lower", [0.1] * 5, "safety.lower has 5 entries; want 4"),
    ("action.execute_steps", 8, "action.execute_steps is 8; a chunk of this policy has 7 actions"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), UNFIT)
def test_what_does_not_fit_the_policy_stops_the_configuration(start_node, policy_engine, name, value, sentence):
    bench = start_node({"engine.backend": "auto", "engine.directory": str(policy_engine), name: value}, active=False)
    assert not bench.change(Transition.TRANSITION_CONFIGURE)
    assert sentence in bench.node.state.failure
    assert bench.lifecycle == "unconfigured"


def test_what_does_not_fit_the_policy_is_refused_while_it_runs(start_policy):
    bench, _robot = start_policy()
    for name, value, sentence in UNFIT:
        assert sentence in bench.set(**{name.replace(".", "__"): value})[0]
    assert set(bench.set(action__execute_steps=7, safety__max_step=[1.0] * 4)) == {""}
    assert bench.set(safety__max_step=[]) == [""]
