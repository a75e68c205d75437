from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from edgellm_ros.resources import resource_path
from edgellm_ros.ros.dds_profile import NEW_VARIABLE, OLD_VARIABLE, PROFILE_NAME, profile_variable, profile_warning

FAST_DDS = "rmw_fastrtps_cpp"


@pytest.mark.parametrize(
    ("distribution", "version", "variable"),
    [
        ("humble", "3.3.0", OLD_VARIABLE),
        ("jazzy", "9.0.0", OLD_VARIABLE),
        ("kilted", "7.0.0", NEW_VARIABLE),
        ("lyrical", "11.0.0", NEW_VARIABLE),
        ("", "3.3.16", OLD_VARIABLE),
        ("", "7.1.6", OLD_VARIABLE),
        ("", "9.1.2", NEW_VARIABLE),
        ("", "unknown", NEW_VARIABLE),
    ],
)
def test_the_variable_is_that_of_the_distribution(distribution: str, version: str, variable: str) -> None:
    assert profile_variable({"ROS_DISTRO": distribution}, version) == variable


def test_a_missing_profile_is_told_with_the_variable_and_the_file() -> None:
    sentence = profile_warning({}, FAST_DDS, variable=OLD_VARIABLE, profile=Path("/share/profile.xml"))
    assert sentence is not None and OLD_VARIABLE in sentence and "/share/profile.xml" in sentence


def test_a_users_own_profile_is_left_alone(tmp_path: Path) -> None:
    profile = tmp_path / "mine.xml"
    profile.write_text("<dds/>")
    for value in (str(profile), f"file://{profile}"):
        assert profile_warning({OLD_VARIABLE: value}, FAST_DDS, variable=OLD_VARIABLE) is None


def test_a_profile_that_is_not_there_is_told_by_name() -> None:
    sentence = profile_warning({OLD_VARIABLE: "/nowhere.xml"}, FAST_DDS, variable=OLD_VARIABLE)
    assert sentence is not None and "/nowhere.xml" in sentence


def test_other_middleware_needs_no_profile() -> None:
    assert profile_warning({}, "rmw_cyclonedds_cpp") is None


def test_the_shipped_profile_has_room_for_camera_frames() -> None:
    root = ElementTree.parse(resource_path(PROFILE_NAME)).getroot()
    name = "{http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles}"
    shared, udp = root.iter(f"{name}transport_descriptor")
    assert shared.findtext(f"{name}type") == "SHM" and udp.findtext(f"{name}type") == "UDPv4"
    assert shared.findtext(f"{name}segment_size") == str(16 * 2**20)
    assert shared.findtext(f"{name}maxMessageSize") == str(4 * 2**20)
    (participant,) = root.iter(f"{name}participant")
    assert participant.get("is_default_profile") == "true"
    assert next(participant.iter(f"{name}useBuiltinTransports")).text == "false"
