from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgellm_ros.cli import engine_cache
from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.ros.dds_profile import NEW_VARIABLE, OLD_VARIABLE
from edgellm_ros.ros.launch_spec import launch_arguments, node_specs
from edgellm_ros.ros.parameter_schema import schema
from edgellm_ros.ros.replay_launch_spec import replay_arguments
from edgellm_ros.tabletop.launch_spec import tabletop_specs


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


def test_the_tabletop_is_a_world_and_a_node_whose_trajectories_it_follows() -> None:
    world, node = tabletop_specs({"engine_dir": "/e", "seed": "3", "rate": "5", "splice": "blend"}, {})
    assert (world.executable, world.module) == ("tabletop_world", "edgellm_ros.tabletop.world_process")
    assert world.parameters == {"seed": 3, "real_time_factor": 1.0, "simulated_time": True}
    assert node.arguments()[3:5] == ["-r", "action_trajectory:=joint_trajectory"]
    assert 'cameras:=["top", "angled"]' in node.arguments() and "action.rate:=5.0" in node.arguments()
    assert node.parameters["engine.threads"] == 1
    assert set(node.parameters) - {"use_sim_time"} <= set(schema().by_name)
    _, node = tabletop_specs({"engine_dir": "/e", "simulated_time": "false"}, {})
    assert node.parameters["use_sim_time"] is False


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"seed": "-1"}, "seed is '-1'; want a whole number from 0 to 2147483647"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"real_time_factor": "nan"}, "real_time_factor is 'nan'; want a number from 0.05 to 50"),
        ({"rate": "0"}, "rate is '0'; want a number from 0.1 to 100"),
        ({"splice": "fade"}, "splice is 'fade'; want one of replace"),
        ({"engine": "/e"}, "launch argument engine does not exist"),
    ],
)
def test_unfit_arguments_of_the_tabletop_are_refused(arguments: dict[str, str], reason: str) -> None:
    with pytest.raises(EdgeLLMError, match=reason):
        tabletop_specs(arguments, {})


@pytest.mark.parametrize("name", ["edgellm", "tabletop", "replay"])
def test_a_launch_file_declares_its_arguments_and_starts_its_nodes(
    name: str, repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``launch`` is not among the wheels: modules that only keep what they are given stand in for it."""
    made = stand_in_for_launch(monkeypatch, {"bag": "kitchen.mcap"})
    built: list[Path] = []
    monkeypatch.setattr("edgellm_ros.cli.engine_cache.build_tabletop", built.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    description = runpy.run_path(str(repository / "launch" / f"{name}.launch.py"))["generate_launch_description"]()
    arguments = [entity for kind, entity in made if kind == "DeclareLaunchArgument"]
    nodes = description.entities[-1].keywords["function"](None)
    if name == "edgellm":
        assert [node.keywords["executable"] for node in nodes] == ["edgellm_node"]
        assert [entity.values[0] for entity in arguments] == [argument.name for argument in launch_arguments()]
    elif name == "replay":
        assert [entity.values[0] for entity in arguments] == [argument.name for argument in replay_arguments()]
        node, command = nodes
        assert node.keywords["executable"] == "edgellm_node"
        words = ["-m", "edgellm_ros.cli.main", "replay", "--node=/edgellm", "--", "kitchen.mcap"]
        assert command.keywords["cmd"] == [sys.executable, *words]
        assert type(command.keywords["on_exit"]).__name__ == "Shutdown"
    else:
        assert [node.keywords["executable"] for node in nodes] == ["tabletop_world", "edgellm_node"]
        assert nodes[1].keywords["remappings"] == [("action_trajectory", "joint_trajectory")]
        assert [str(path) for path in built] == [nodes[1].keywords["parameters"][0]["engine.directory"]]


@pytest.mark.parametrize(
    ("content", "builds"), [(None, True), ([], True), (["llm.onnx"], False)], ids=["missing", "empty", "another's"]
)
def test_the_tabletop_s_engine_is_built_only_where_nothing_is(
    content: list[str] | None, builds: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[Path] = []
    monkeypatch.setattr(engine_cache, "build_tabletop", built.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "engine"
    if content is not None:
        place.mkdir()
        for name in content:
            (place / name).write_text("somebody's own")
    assert engine_cache.tabletop_directory(str(place)) == place
    assert built == ([place] if builds else [])


def test_the_tabletop_s_engine_in_the_cache_is_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[Path] = []
    monkeypatch.setattr(engine_cache, "build_tabletop", built.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = engine_cache.cached_engine_directory(engine_cache.TABLETOP)
    place.mkdir(parents=True)
    (place / "llm.onnx").write_text("an older one")
    assert engine_cache.tabletop_directory(place) == place and built == [place]


def stand_in_for_launch(monkeypatch: pytest.MonkeyPatch, given: Mapping[str, str]) -> list[tuple[str, Any]]:
    """What is made of any of these classes, in its order; arguments are as ``given``, or their defaults."""
    made: list[tuple[str, Any]] = []
    defaults: dict[str, str] = {}

    class Made:
        def __init__(self, *values: Any, **keywords: Any) -> None:
            self.values, self.keywords = values, keywords
            made.append((type(self).__name__, self))
            if "default_value" in keywords:
                defaults[values[0]] = keywords["default_value"]

        @property
        def entities(self) -> list[Any]:
            return list(self.values[0])

        def perform(self, context: Any) -> str:
            return {**defaults, **given}[self.values[0]]

    modules = {
        "launch": ["LaunchDescription"],
        "launch.launch_description": ["LaunchDescription"],
        "launch.actions": ["DeclareLaunchArgument", "ExecuteProcess", "OpaqueFunction", "Shutdown"],
        "launch.substitutions": ["LaunchConfiguration"],
        "launch_ros": [],
        "launch_ros.actions": ["Node"],
    }
    for module_name, classes in modules.items():
        module = types.ModuleType(module_name)
        for class_name in classes:
            setattr(module, class_name, type(class_name, (Made,), {}))
        monkeypatch.setitem(sys.modules, module_name, module)
    return made
