"""resource_path finds shipped files and says where it looked when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tree_copies import REPOSITORY

from edgellm_ros import resources
from edgellm_ros.errors import EdgeLLMError, MissingPackageError, MisuseError
from edgellm_ros.resources import resource_path


def installed_package(prefix: Path, marker: bool) -> Path:
    package = prefix / "lib" / "python3.12" / "site-packages" / "edgellm_ros"
    package.mkdir(parents=True)
    if marker:
        index = prefix / "share" / "ament_index" / "resource_index" / "packages"
        index.mkdir(parents=True)
        (index / "edgellm_ros").touch()
    return package


def put(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_source_tree_serves_its_own_files() -> None:
    assert resource_path("config/fastdds_shared_memory.xml") == REPOSITORY / "config" / "fastdds_shared_memory.xml"
    assert resource_path("launch").is_dir()


def test_an_installation_prefers_the_file_that_a_user_can_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = installed_package(tmp_path, marker=True)
    put(package / "share", "config/a.yaml")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resource_path("config/a.yaml") == package / "share" / "config" / "a.yaml"
    shared = put(tmp_path / "share" / "edgellm_ros", "config/a.yaml")
    assert resource_path("config/a.yaml") == shared


def test_a_copy_inside_the_package_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = installed_package(tmp_path, marker=False)
    inside = put(package / "share", "launch/a.launch.py")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    monkeypatch.setenv("AMENT_PREFIX_PATH", "")
    assert resource_path("launch/a.launch.py") == inside


def test_the_ament_prefixes_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = installed_package(tmp_path / "own", marker=False)
    other = tmp_path / "other"
    installed_package(other, marker=True)
    shared = put(other / "share" / "edgellm_ros", "config/a.yaml")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{tmp_path / 'nothing'}:{other}")
    assert resource_path("config/a.yaml") == shared


def test_a_missing_file_is_one_sentence_with_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = installed_package(tmp_path, marker=True)
    monkeypatch.setattr(resources, "_PACKAGE", package)
    monkeypatch.setenv("AMENT_PREFIX_PATH", "")
    with pytest.raises(MissingPackageError) as caught:
        resource_path("config/absent.yaml")
    message = str(caught.value)
    assert isinstance(caught.value, EdgeLLMError)
    assert "config/absent.yaml" in message
    assert str(tmp_path / "share" / "edgellm_ros") in message
    assert str(package / "share") in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["", "/etc/hosts", "../setup.py", "config/../../x"])
def test_a_name_that_leads_outside_is_refused(name: str) -> None:
    with pytest.raises(MisuseError, match="wanted a relative name"):
        resource_path(name)
