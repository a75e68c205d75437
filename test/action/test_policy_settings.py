"""The settings of a robot that a policy is built with: names, units, meaning; and those that do not fit."""

from __future__ import annotations

import shutil

import pytest
from smolvla_reference import FOLDER, compute

from edgellm_ros.action.policy_manifest import ActionMeaning
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import CheckpointError


def test_settings_name_the_numbers_and_their_meaning(tmp_path):
    settings = tmp_path / "robot.yaml"
    settings.write_text(
        "meaning: joint_position\nstep_time: 0.05\n"
        "action: {names: [pan, lift, elbow, grip], units: [rad, rad, rad, m]}\n"
    )
    path = build_engine(FOLDER, tmp_path / "engine", policy_settings=settings)
    with PolicyRuntime(path, threads=1) as opened:
        assert opened.manifest.meaning is ActionMeaning.JOINT_POSITION and opened.manifest.step_time == 0.05
        chunk = compute(opened, "all")
        assert chunk.names == ("pan", "lift", "elbow", "grip") and chunk.units[-1] == "m" and chunk.step == 50_000_000


def test_settings_beside_the_checkpoint_are_read_where_no_others_are_named(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "policy")
    (tmp_path / "policy" / "policy_settings.yaml").write_text("meaning: joint_position\n")
    (tmp_path / "robot.yaml").write_text("meaning: twist\n")
    for given, meaning in ((None, ActionMeaning.JOINT_POSITION), (tmp_path / "robot.yaml", ActionMeaning.TWIST)):
        path = build_engine(tmp_path / "policy", tmp_path / meaning.value, policy_settings=given)
        with PolicyRuntime(path, threads=1) as opened:
            assert opened.manifest.meaning is meaning


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("meaning: flight\n", "'flight' is not a valid ActionMeaning"),
        ("action: {names: [a, b]}\n", "2 action names; the checkpoint has 4"),
        ("speed: 3\n", "want the keys meaning, step_time"),
        ("step_time: .nan\n", "step_time is nan"),
        ("state: [1]\n", "state is"),
        ("a: [\n", "cannot be read as YAML"),
        pytest.param("[" * 10000, "cannot be read as YAML", id="deep"),
        ("state: &all {names: [a]}\naction: *all\n", "repeats a part by an alias"),
        pytest.param("#" * (2 << 20), "bytes; want at most", id="long"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, text, sentence):
    (tmp_path / "robot.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=sentence):
        build_engine(FOLDER, tmp_path / "engine", policy_settings=tmp_path / "robot.yaml")
