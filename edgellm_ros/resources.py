"""Finds the files that ship beside the code: parameter files, launch files, the DDS profile.

They lie in ``config/`` and ``launch/`` of the source tree, under ``share/edgellm_ros`` of an installation by pip or
colcon, and once more inside the package, because some kinds of pip install leave ``share/`` out.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from .errors import MissingPackageError, MisuseError

PACKAGE_NAME = "edgellm_ros"
_PACKAGE = Path(__file__).resolve().parent
_INDEX_MARKER = f"share/ament_index/resource_index/packages/{PACKAGE_NAME}"
# prefix/lib/python3.12/site-packages/edgellm_ros is four levels below its prefix, Debian's dist-packages likewise
_PREFIX_LEVELS = 4


def resource_path(name: str) -> Path:
    """Return the absolute path of a shipped file or folder.

    The places are asked in this order: the source tree when the code runs from one, the installation that the running
    code belongs to (so that an edited file under its ``share/`` counts), the copy inside the package, and last the
    prefixes of ``AMENT_PREFIX_PATH``.

    Args:
        name: relative and with forward slashes, such as ``config/edgellm.yaml`` or ``launch/edgellm.launch.py``.

    Raises:
        MissingPackageError: this installation lacks the file; the message lists every place that was asked.
        MisuseError: ``name`` is absolute, empty or leads outside.
    """
    relative = PurePosixPath(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        raise MisuseError(f"resource_path got {name!r}, wanted a relative name such as 'config/edgellm.yaml'.")
    folders = _search_folders()
    for folder in folders:
        candidate = folder / relative
        if candidate.exists():
            return candidate
    asked = ", ".join(str(folder) for folder in folders)
    raise MissingPackageError(
        f"{name} is not in this installation of {PACKAGE_NAME} (looked in {asked}): install the package again, "
        "with pip install or colcon build."
    )


def _search_folders() -> list[Path]:
    folders = []
    source = _PACKAGE.parent
    if (source / "package.xml").is_file() and (source / "setup.py").is_file():
        folders.append(source)
    for prefix in list(_PACKAGE.parents)[: _PREFIX_LEVELS + 1]:
        if (prefix / _INDEX_MARKER).is_file():
            folders.append(prefix / "share" / PACKAGE_NAME)
            break
    folders.append(_PACKAGE / "share")
    for prefix_name in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        share = Path(prefix_name) / "share" / PACKAGE_NAME
        if prefix_name and share not in folders and (Path(prefix_name) / _INDEX_MARKER).is_file():
            folders.append(share)
    return folders
