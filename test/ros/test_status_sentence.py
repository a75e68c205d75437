from __future__ import annotations

import pytest

from edgellm_ros.ros.report import Level
from edgellm_ros.ros.status import NodeFacts, node_status

READY = NodeFacts("active", "/arm/edgellm", "/arm/prompt", engine_summary="tiny (int8) on cpu", prompt_publishers=1)


@pytest.mark.parametrize(
    ("changes", "level", "part"),
    [
        ({}, Level.OK, "waiting for a prompt on /arm/prompt"),
        ({"prompt_publishers": 0}, Level.OK, "nobody publishes on /arm/prompt yet"),
        ({"running": True, "waiting": 2}, Level.OK, "Answering a prompt, 2 waiting."),
        ({"clock_missing": True}, Level.WARN, "/clock"),
        ({"enabled": False}, Level.WARN, "call /arm/edgellm/enable with true"),
        ({"engine_fault": "It hangs."}, Level.ERROR, "It hangs."),
        ({"lifecycle": "inactive"}, Level.WARN, "ros2 lifecycle set /arm/edgellm activate"),
        ({"lifecycle": "unconfigured"}, Level.WARN, "ros2 lifecycle set /arm/edgellm configure"),
        ({"lifecycle": "unconfigured", "engine_directory_set": False}, Level.WARN, "engine.directory"),
        ({"lifecycle": "unconfigured", "failure": "No such folder."}, Level.ERROR, "No engine: No such folder."),
        ({"lifecycle": "finalized"}, Level.WARN, "The node is finalized."),
        # the first unmet need comes first
        ({"lifecycle": "inactive", "enabled": False, "engine_fault": "It hangs."}, Level.WARN, "inactive"),
        ({"enabled": False, "engine_fault": "It hangs.", "clock_missing": True}, Level.ERROR, "It hangs."),
    ],
)
def test_the_sentence_names_the_first_thing_that_is_missing(
    changes: dict[str, object], level: Level, part: str
) -> None:
    import dataclasses

    found_level, sentence = node_status(dataclasses.replace(READY, **changes))  # type: ignore[arg-type]
    assert (found_level, part in sentence) == (level, True), sentence
