"""Which part may import which, and how little ``import edgellm_ros`` costs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import edgellm_ros

PACKAGE = Path(edgellm_ros.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
PARTS = ("backends", "runtime", "vision", "action", "builder", "ros", "cli", "tabletop")
SHARED = {
    "adapter_format", "chat_template", "engine_format", "engine_manifest", "errors", "file_sample", "json_values",
    "resources", "template_sandbox", "tokenizer_failures", "__version__",
}  # fmt: skip
RUN_TIME = {"runtime", "vision", "action", "backends"}
MAY_IMPORT = {
    "backends": {"backends"},
    "runtime": RUN_TIME,
    "vision": RUN_TIME,
    "action": RUN_TIME,
    # a plan is compiled by the library that runs it; manifests and settings of towers and processors are shared
    "builder": {"builder", "backends", "action", "vision"},
    "ros": RUN_TIME | {"ros"},
    "cli": set(PARTS),
    "tabletop": {"tabletop", "ros", *RUN_TIME},
}

ROS_COMMANDS = ("cli/demo.py", "cli/demo_text.py", "cli/node_session.py")


def imports(module: Path) -> set[str]:
    """Absolute dotted names of everything that a module imports, at its top and inside functions."""
    package = ("edgellm_ros", *module.with_suffix("").parts[:-1])
    names = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *((node.module,) if node.module else ())))
            names.update(f"{stem}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_follow_the_layers(module):
    found = imports(module)
    roots = {name.split(".")[0] for name in found}
    assert not roots & {"torch", "transformers"}
    part = module.parts[0] if len(module.parts) > 1 else None
    if part not in ("ros", "tabletop") and module.as_posix() not in ROS_COMMANDS:
        assert not roots & {"rclpy", "std_msgs", "sensor_msgs", "diagnostic_msgs", "lifecycle_msgs"}
    if part is None:
        return
    inside = {name.split(".")[1] for name in found if name.startswith("edgellm_ros.") and name.count(".")}
    assert inside - SHARED <= MAY_IMPORT[part] | {part}


def reached(module: Path) -> set[Path]:
    """A module and all of this package that it imports, at its top or within a function, and what these import."""
    found, waiting = set(), [module]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        for name in imports(one):
            parts = name.split(".")[1:] if name.startswith("edgellm_ros.") else []
            places = (Path(*parts[: len(parts) - less]).with_suffix(".py") for less in (0, 1) if len(parts) > less)
            waiting += [place for place in places if (PACKAGE / place).is_file()]
    return found


@pytest.mark.parametrize(
    ("module", "known"),
    [
        # the cameras' names and the type of arrays
        ("tabletop/engine_policy.py", {"engine_policy.py", "cameras.py", "geometry.py"}),
        ("action/policy_runtime.py", set()),
        ("ros/node.py", set()),
    ],
)
def test_nothing_that_acts_reaches_the_state_of_the_tabletop_by_imports(module, known):
    found = reached(Path(module))
    assert Path("action/policy_runtime.py") in found
    assert {path.name for path in found if path.parts[0] == "tabletop"} == known


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import edgellm_ros", ["numpy", "tokenizers", "jinja2", "onnxruntime", "transformers", "rclpy", "cv2"]),
        ("import edgellm_ros.cli.main", ["numpy", "tokenizers", "onnxruntime", "rclpy"]),
        (
            "import contextlib, io; from edgellm_ros.cli.main import main\n"
            "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])",
            ["numpy", "tokenizers", "onnxruntime", "onnx", "cv2", "rclpy"],
        ),
        (
            "from edgellm_ros import LLMInferenceRuntime, RequestEngine",
            ["onnxruntime", "onnx", "transformers", "torch", "rclpy", "edgellm_ros.builder"],
        ),
    ],
    ids=["package", "command", "help", "runtime"],
)
def test_importing_stays_light(statement, absent):
    code = f"import sys\n{statement}\nprint([name for name in {absent!r} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_the_exported_names_exist():
    for name in edgellm_ros.__all__:
        assert getattr(edgellm_ros, name) is not None
