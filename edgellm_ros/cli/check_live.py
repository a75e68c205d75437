"""Whether a robot publishes now what the node would subscribe to, and listens to what it would publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..action.policy_manifest import ActionMeaning, PolicyManifest
from ..ros.cameras import Camera
from ..ros.policy_host import state_names
from .findings import Findings


def check_live(
    findings: Findings,
    seconds: float,
    given: Mapping[str, Any],
    cameras: Sequence[Camera],
    policy: PolicyManifest | None,
    action_names: tuple[str, ...],
    resolve: Callable[[str], str],
) -> None:
    """Look for so long; ``given`` are the parameters, ``action_names`` those of the policy as messages name them."""
    from ..ros.live_topics import WantedTopic, live_topics

    wanted = [WantedTopic(camera.topic, camera.message_type) for camera in cameras]
    drives = policy is not None and policy.driving is not None
    joints = resolve("joint_states")
    if policy is not None:
        source = WantedTopic(resolve("odom"), "nav_msgs/msg/Odometry")
        wanted.append(source if drives else WantedTopic(joints, "sensor_msgs/msg/JointState"))
    with live_topics(seconds, given) as live:
        troubles = {one.topic: live.trouble(one) for one in wanted}
        for topic, trouble in troubles.items():
            if trouble:
                findings.problem("live", trouble)
            else:
                findings.ok("live", f"{topic} is published as the node takes it.")
        if policy is None:
            return
        if not drives and not troubles[joints] and action_names:
            _check_joints(findings, live.joint_names(joints), joints, state_names(policy, action_names))
        if policy.meaning is ActionMeaning.JOINT_POSITION:
            topic = resolve("action_trajectory")
            if not live.subscribers(topic):
                findings.warning("live", f"Nobody listens to {topic}; remap it to the topic of the controller.")


def _check_joints(findings: Findings, names: tuple[str, ...] | None, topic: str, wanted: Sequence[str]) -> None:
    if names is None:
        findings.problem("live", f"{topic} has a publisher and no message came in a second; see what it waits for.")
    elif missing := [name for name in wanted if name not in names]:
        findings.problem(
            "live",
            f"{topic} has {', '.join(names) or 'no names'} and lacks {', '.join(missing)}; name the joints in "
            "action.joint_names as the robot does.",
        )
    else:
        findings.ok("live", f"{topic} has every joint of the policy: {', '.join(wanted)}.")
