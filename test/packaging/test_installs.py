"""Every kind of installation carries the commands, the data files and the markers, and finds them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tree_copies import REPOSITORY, clean_environment, copy_of_tree, python, run

from edgellm_ros import __version__

SHARED = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for folder in ("config", "launch")
    for path in (REPOSITORY / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
LOCATE = """
import json
import edgellm_ros
from edgellm_ros.resources import resource_path
found = {name: str(resource_path(name)) for name in NAMES}
print(json.dumps({"package": edgellm_ros.__file__, "found": found}))
""".replace("NAMES", repr(SHARED))


def check_resources(packages: Path, folder: Path) -> None:
    """A fresh interpreter that sees only this installation finds every shipped file inside it, contents unchanged."""
    answer = json.loads(python(LOCATE, environment=clean_environment(PYTHONPATH=str(packages)), folder=folder))
    assert Path(answer["package"]).is_relative_to(packages)
    for name, found in answer["found"].items():
        assert Path(found).read_bytes() == (REPOSITORY / name).read_bytes()
        assert not Path(found).is_relative_to(REPOSITORY)


def check_share(prefix: Path) -> None:
    assert (prefix / "share/ament_index/resource_index/packages/edgellm_ros").is_file()
    assert (prefix / "share/edgellm_ros/package.xml").is_file()
    for name in SHARED:
        assert (prefix / "share/edgellm_ros" / name).is_file()


def check_package_data(package: Path) -> None:
    assert (package / "py.typed").is_file()
    for name in ("model.safetensors", "config.json", "vlm/config.json", "vlm/tokenizer.json"):
        assert (package / "tabletop" / "checkpoint" / name).is_file()
    assert (package / "ros" / "parameters.yaml").is_file()
    for name in SHARED:
        assert (package / "share" / name).is_file()


def test_there_are_files_to_ship() -> None:
    assert any(name.startswith("launch/") for name in SHARED)
    assert "config/fastdds_shared_memory.xml" in SHARED


@pytest.mark.skipif(
    int(version("setuptools").split(".")[0]) < 71 and importlib.util.find_spec("wheel") is None,
    reason="setuptools before 71 builds wheels only with the package wheel",
)
@pytest.mark.parametrize("kind", ["prefix", "target"])
def test_pip_install(kind: str, tmp_path: Path) -> None:
    source = copy_of_tree(tmp_path / "source")
    prefix = tmp_path / "installed"
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"),
        *("--no-deps", "--no-build-isolation", "--ignore-installed", f"--{kind}", prefix, source),
    )
    folder = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = prefix / "lib" / folder / "site-packages" if kind == "prefix" else prefix
    check_share(prefix)
    check_package_data(packages / "edgellm_ros")
    check_resources(packages, tmp_path)
    environment = clean_environment(PYTHONPATH=str(packages))
    assert (prefix / "bin" / "edgellm_node").is_file()
    assert __version__ in run(prefix / "bin" / "edgellm", "--version", environment=environment, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--symlink-install",)], ids=["copied", "symlinked"])
def test_colcon_build(options: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("colcon_core")
    source = copy_of_tree(tmp_path / "workspace" / "src" / "edgellm_ros")
    workspace = tmp_path / "workspace"
    environment = clean_environment(
        COLCON_LOG_PATH=str(tmp_path / "log"), PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    colcon = (sys.executable, "-c", "import sys; from colcon_core.command import main; sys.exit(main())")
    run(*colcon, "build", "--base-paths", "src", *options, environment=environment, folder=workspace)
    prefix = workspace / "install" / "edgellm_ros"
    check_share(prefix)
    commands = (
        f"source {workspace / 'install' / 'setup.bash'}",
        f"{prefix}/lib/edgellm_ros/edgellm --version",
        "python -c 'import edgellm_ros; print(edgellm_ros.__file__)'",
    )
    script = " && ".join(commands)
    printed, module = run("bash", "-c", script, environment=environment, folder=tmp_path).strip().splitlines()[-2:]
    assert __version__ in printed
    assert (prefix / "lib/edgellm_ros/edgellm_node").is_file()
    package = Path(module).parent
    assert package.resolve().is_relative_to(source if options else prefix)
    check_resources(package.parent, tmp_path)
