"""Which joint is which: the state and the actions of a policy among the names that messages use."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edgellm_ros.action.noise import NoiseSeeds
from edgellm_ros.action.policy_manifest import ActionMeaning
from edgellm_ros.errors import PolicyError
from edgellm_ros.ros.parameters import Settings
from edgellm_ros.ros.policy_host import PolicyHost, check_settings, unfit


def host(state, action, joint_names=()):
    parts = {
        name: SimpleNamespace(names=names, width=len(names)) for name, names in (("state", state), ("action", action))
    }
    return PolicyHost(SimpleNamespace(manifest=SimpleNamespace(**parts)), NoiseSeeds(), tuple(joint_names or action))


@pytest.mark.parametrize(
    ("state", "action", "given", "wanted"),
    [
        (("pan", "lift"), ("pan", "lift"), (), ("pan", "lift")),
        (("pan", "lift"), ("lift", "pan"), (), ("pan", "lift")),
        (("pan", "lift"), ("lift", "pan"), ("l", "p"), ("p", "l")),
        (("pan", "lift", "wrist"), ("lift", "pan"), ("l", "p"), ("p", "l", "wrist")),
        (("state_0", "state_1"), ("action_0", "action_1"), (), ("state_0", "state_1")),
        (("state_0", "state_1"), ("action_0", "action_1"), ("a", "b"), ("a", "b")),
        (("state_0", "state_1", "state_2"), ("action_0",), ("a",), ("state_0", "state_1", "state_2")),
    ],
)
def test_the_state_is_read_under_the_names_that_its_own_numbers_have(state, action, given, wanted):
    assert host(state, action, given).state_names == wanted


@pytest.mark.parametrize("part", ["state", "action"])
@pytest.mark.parametrize("unit", ["deg", "unknown", "", "Rad"])
def test_positions_in_other_units_than_those_of_joint_messages_are_refused(part, unit):
    units = {"state": ("rad", "m", "1"), "action": ("rad", "m", "1")}
    names, settings = ("pan", "rail", "grip"), Settings.from_values({})

    def check(meaning):
        parts = {key: SimpleNamespace(names=names, units=value, width=3) for key, value in units.items()}
        check_settings(
            SimpleNamespace(meaning=meaning, max_denoise_steps=10, horizon=7, **parts),
            settings.action,
            settings.safety,
            names,
        )

    check(ActionMeaning.JOINT_POSITION)
    units[part] = ("rad", unit, "1")
    check(ActionMeaning.JOINT_DELTA)
    with pytest.raises(
        PolicyError, match=rf"has 'rail' in {unit!r}; joint_states and action_trajectory carry rad, m, 1"
    ):
        check(ActionMeaning.JOINT_POSITION)


@pytest.mark.parametrize(
    ("state", "action", "wanted"),
    [
        (("pan", "lift"), ("pan", "lift"), [1, 2]),
        (("pan", "lift"), ("lift", "pan"), [2, 1]),
        (("pan", "lift", "wrist"), ("wrist", "pan"), [3, 1]),
        (("state_0", "state_1"), ("action_0", "action_1"), [1, 2]),
        (("pan", "lift"), ("pan", "grip"), None),
        (("pan",), ("x", "y"), None),
    ],
)
def test_a_first_step_counts_from_the_same_joint(state, action, wanted):
    found = host(state, action).positions(np.arange(1.0, 1 + len(state)))
    assert (None if found is None else found.tolist()) == wanted


@pytest.mark.parametrize(("steps", "fits"), [(0, True), (4, True), (5, False)])
def test_more_denoise_steps_than_the_engine_takes_are_refused(steps, fits):
    policy = SimpleNamespace(action=SimpleNamespace(width=1), max_denoise_steps=4, horizon=7)
    reason = unfit(policy, "action.denoise_steps", steps)
    assert reason is None if fits else reason == "action.denoise_steps is 5; this engine takes at most 4."
