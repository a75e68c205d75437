"""Whether Fast DDS was given a profile: without one, camera frames on one machine are mostly lost.

Its shared-memory segment is 512 KiB by default, smaller than one frame. The profile in config/ enlarges it. It only
acts when both processes have it before they start, so a node can notice that it is missing, not repair it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

OLD_VARIABLE = "FASTRTPS_DEFAULT_PROFILES_FILE"
NEW_VARIABLE = "FASTDDS_DEFAULT_PROFILES_FILE"
PROFILE_NAME = "config/fastdds_shared_memory.xml"
_OLD_DISTRIBUTIONS = ("foxy", "galactic", "humble", "iron", "jazzy")
_LAST_OLD_RCLPY = 7  # Jazzy's


def profile_variable(environment: Mapping[str, str], rclpy_version: str | None = None) -> str:
    """The environment variable that this distribution's Fast DDS reads."""
    distribution = environment.get("ROS_DISTRO", "")
    if distribution:
        return OLD_VARIABLE if distribution in _OLD_DISTRIBUTIONS else NEW_VARIABLE
    if rclpy_version is None:
        try:
            rclpy_version = importlib.metadata.version("rclpy")
        except importlib.metadata.PackageNotFoundError:
            return NEW_VARIABLE
    major = rclpy_version.split(".")[0]
    return OLD_VARIABLE if major.isdecimal() and int(major) <= _LAST_OLD_RCLPY else NEW_VARIABLE


def profile_warning(
    environment: Mapping[str, str], middleware: str, *, variable: str | None = None, profile: Path | None = None
) -> str | None:
    """One sentence when Fast DDS runs without a profile or with one that is not there; None when all is well.

    ``profile`` is where this package's own profile lies; ``middleware`` the identifier of the rmw in use.
    """
    if "fastrtps" not in middleware:
        return None
    variable = variable or profile_variable(environment)
    found = environment.get(variable, "")
    if not found:
        where = str(profile) if profile else PROFILE_NAME
        return (
            f"{variable} is not set, so large messages such as camera frames may be lost; "
            f"set it to {where} for every process before it starts."
        )
    path = Path(found.removeprefix("file://"))
    if not path.is_file():
        return f"{variable} names {path}, which is not a file; Fast DDS runs with its defaults."
    return None
