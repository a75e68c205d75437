"""A policy's node as a process of its own: whatever ends it, the robot is told to hold."""

from __future__ import annotations

import signal

import pytest
import test_node_process as node_process
import test_policy_node as policy_node
from policy_bench import Robot

from edgellm_ros.ros.launch_spec import node_specs

engine = policy_node.engine
PARAMETERS = """
/**:
  ros__parameters:
    images: {max_age: 30.0}
    safety: {max_state_age: 10.0}
    action: {rate: 10.0}
    generation: {timeout: 0.0}
    engine: {threads: 1}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_robot_moves_holds_it(engine, tmp_path, number):
    (tmp_path / "robot.yaml").write_text(PARAMETERS)
    (spec,) = node_specs(
        {"engine_dir": str(engine), "backend": "onnxruntime", "params_file": str(tmp_path / "robot.yaml")}
    )
    bench = node_process.ProcessBench(spec)
    try:
        bench.wait_active()
        robot = Robot(bench, policy_node.CAMERAS, policy_node.JOINTS)
        heard = (*robot.images.values(), robot.states)
        bench.wait(lambda: all(publisher.get_subscription_count() for publisher in heard), "the node listens")
        bench.wait(lambda: bench.client.count_publishers("action_trajectory"), "the robot listens")
        asked = []

        def moves():
            robot.observe(policy_node.pictures(), policy_node.state())
            if not asked:
                asked.append(bench.client.ask(policy_node.TASK))
            return robot.trajectories and robot.trajectories[-1].points

        bench.wait(moves, "the robot moves")
        bench.process.send_signal(number)
        bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
        assert bench.process.wait(node_process.DEADLINE) == 0
        assert "Traceback" not in bench.process.output()
    finally:
        bench.close()
