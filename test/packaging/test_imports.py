"""Who may import what: nothing imports torch, only ros/ imports rclpy, the runtime never imports the builder."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from tree_copies import REPOSITORY, python

PACKAGE = REPOSITORY / "edgellm_ros"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
HEAVY = ("torch", "transformers", "numpy", "onnxruntime", "onnx", "tokenizers", "cv2", "rclpy")
ROS_PARTS = ("ros",)
# commands that drive a node; they import rclpy themselves or through ros/
ROS_COMMANDS = ("cli/demo.py",)


def imports(path: Path) -> set[str]:
    """Absolute dotted names of everything that a file imports; relative ones resolved."""
    package = ("edgellm_ros", *path.relative_to(PACKAGE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def within(names: set[str], prefix: str) -> set[str]:
    return {name for name in names if name == prefix or name.startswith(prefix + ".")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_layers(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    names = imports(path)
    assert not within(names, "torch")
    assert not within(names, "transformers")
    if relative.parts[0] not in ROS_PARTS and relative.as_posix() not in ROS_COMMANDS:
        assert not within(names, "rclpy")
        assert not within(names, "edgellm_ros.ros")
    if relative.parts[0] in ("runtime", "backends", "ros"):
        assert not within(names, "edgellm_ros.builder")
        assert not within(names, "edgellm_ros.cli")
    if relative.parts[0] == "backends":
        assert not within(names, "edgellm_ros.runtime")


def test_importing_the_package_is_light() -> None:
    code = f"import sys, json, edgellm_ros; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    assert json.loads(python(code)) == []


def test_help_of_the_command_is_light() -> None:
    code = (
        "import sys, json\nfrom edgellm_ros.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    assert json.loads(python(code).splitlines()[-1]) == []


def test_exported_names_exist() -> None:
    python("import edgellm_ros\nfor name in edgellm_ros.__all__:\n    getattr(edgellm_ros, name)")
