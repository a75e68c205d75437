"""A policy's node as a process of its own: whatever ends it, the robot is told to hold."""

from __future__ import annotations

import signal

import pytest
import test_node_process as node_process
from policy_bench import CAMERAS, JOINTS, TASK, Robot, pictures, state

from edgellm_ros.ros.launch_spec import node_specs

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
def test_a_signal_while_the_robot_moves_holds_it(policy_engine, tmp_path, number):
    (tmp_path / "robot.yaml").write_text(PARAMETERS)
    (spec,) = node_specs(
        {"engine_dir": str(policy_engine), "backend": "onnxruntime", "params_file": str(tmp_path / "robot.yaml")}
    )
    bench = node_process.ProcessBench(spec)
    try:
        bench.wait_active()
        robot = Robot(bench, CAMERAS, JOINTS)
        heard = (*robot.images.values(), robot.states)
        bench.wait(lambda: all(publisher.get_subscription_count() for publisher in heard), "the node listens")
        bench.wait(lambda: bench.client.count_publishers("action_trajectory"), "the robot listens")
        asked = []

        def moves():
            robot.observe(pictures(), state())
            if not asked:
                asked.append(bench.client.ask(TASK))
            return robot.trajectories and robot.trajectories[-1].points

        bench.wait(moves, "the robot moves")
        bench.process.send_signal(number)
        bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
        assert bench.process.wait(node_process.DEADLINE) == 0
        assert "Traceback" not in bench.process.output()
    finally:
        bench.close()
