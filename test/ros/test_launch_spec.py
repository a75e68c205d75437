from __future__ import annotations

from pathlib import Path

import pytest

from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.ros.dds_profile import NEW_VARIABLE, OLD_VARIABLE
from edgellm_ros.ros.launch_spec import launch_arguments, node_specs


def test_the_defaults_start_one_node_with_the_shipped_parameter_file() -> None:
    (spec,) = node_specs({}, {})
    assert (spec.package, spec.executable, spec.name, spec.namespace) == ("edgellm_ros", "edgellm_node", "edgellm", "")
    (file,) = spec.parameter_files
    assert Path(file).name == "edgellm.yaml" and Path(file).is_file()
    assert spec.parameters == {"use_sim_time": False, "autostart": True}


def test_arguments_win_over_the_parameter_file_only_when_given() -> None:
    (spec,) = node_specs({"engine_dir": "/e", "backend": "fake", "autostart": "false", "use_sim_time": "True"}, {})
    assert spec.parameters == {
        "use_sim_time": True,
        "autostart": False,
        "engine.directory": "/e",
        "engine.backend": "fake",
    }


def test_the_command_line_quotes_what_yaml_would_misread() -> None:
    values = {"engine_dir": "/a b/it's: #1", "namespace": "left", "node_name": "talker", "params_file": "/p.yaml"}
    (spec,) = node_specs(values, {})
    arguments = spec.arguments()
    assert arguments[:7] == ["--ros-args", "-r", "__node:=talker", "-r", "__ns:=/left", "--params-file", "/p.yaml"]
    assert 'engine.directory:="/a b/it\'s: #1"' in arguments
    assert arguments[-2:] == ["--log-level", "info"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"engine": "/e"}, "launch argument engine does not exist"),
        ({"backend": "gpu"}, "launch argument backend is 'gpu'; want one of nothing, auto"),
        ({"autostart": "yes"}, "launch argument autostart is 'yes'"),
        ({"log_level": "loud"}, "log_level"),
    ],
)
def test_unknown_arguments_and_values_are_refused(arguments: dict[str, str], reason: str) -> None:
    with pytest.raises(EdgeLLMError, match=reason):
        node_specs(arguments, {})


@pytest.mark.parametrize(("distribution", "variable"), [("jazzy", OLD_VARIABLE), ("kilted", NEW_VARIABLE)])
def test_the_profile_is_set_unless_the_user_has_one(distribution: str, variable: str) -> None:
    (spec,) = node_specs({}, {"ROS_DISTRO": distribution})
    assert list(spec.environment) == [variable] and Path(spec.environment[variable]).is_file()
    (spec,) = node_specs({}, {"ROS_DISTRO": distribution, variable: "/mine.xml"})
    assert spec.environment == {}


def test_every_launch_argument_is_described() -> None:
    for argument in launch_arguments():
        assert argument.description.endswith(".")
        assert not argument.choices or argument.default in argument.choices


def test_the_launch_file_is_read_by_launch(repository: Path) -> None:
    pytest.importorskip("launch_ros")
    from launch.launch_description_sources import PythonLaunchDescriptionSource

    from launch import LaunchService

    source = PythonLaunchDescriptionSource(str(repository / "launch" / "edgellm.launch.py"))
    description = source.get_launch_description(LaunchService().context)
    declared = {argument.name for argument in description.get_launch_arguments()}
    assert declared == {argument.name for argument in launch_arguments()}
