"""What ``replay.launch.py`` starts: the node, and the command that plays a recording to it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..errors import EdgeLLMError, RefusalCode
from .launch_spec import CommandSpec, LaunchArgument, NodeSpec, argument_values, launch_arguments, node_specs

# what the command is given by an option of its name, where it is not empty
_OPTIONS = (
    LaunchArgument("prompt", "", "Publish this too: a question or a task."),
    LaunchArgument("prompt_after", "", "Seconds from the first message to the prompt; empty is 0."),
    LaunchArgument("rate", "", "Pace; 0.5 is half as fast; empty is 1."),
    LaunchArgument("settle", "", "Seconds for what runs at the end; empty is 10."),
    LaunchArgument("output", "", "File to write what came into."),
    LaunchArgument("expect", "", "File with what came another time, to compare with."),
)
_RECORDED_TIME = LaunchArgument("use_sim_time", "true", "Take the time from the recording, as it must.", ("true",))


def replay_arguments() -> tuple[LaunchArgument, ...]:
    """All arguments of ``replay.launch.py``: its own, and those of the node but for ``autostart``."""
    of_node = [argument for argument in launch_arguments() if argument.name != "autostart"]
    return (
        LaunchArgument("bag", "", "Folder of the recording, or its mcap or sqlite3 file."),
        *_OPTIONS,
        LaunchArgument("remap", "", "TOPIC:=TOPIC of the recording and of the node, with blanks between several."),
        *(_RECORDED_TIME if argument.name == _RECORDED_TIME.name else argument for argument in of_node),
    )


def replay_specs(
    arguments: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> tuple[NodeSpec, CommandSpec]:
    """The node and the command that plays to it, in this order.

    The node's reports have the texts in them, for the command keeps their digests.

    :raises EdgeLLMError: an unknown argument, a value that is not one of its choices, or no recording.
    """
    values = argument_values(replay_arguments(), arguments)
    if not values["bag"]:
        raise EdgeLLMError(
            "The launch argument bag is empty; name the recording, as bag:=kitchen.mcap.",
            RefusalCode.BAD_PARAMETER,
        )
    known = {argument.name for argument in launch_arguments()}
    of_node = {name: value for name, value in values.items() if name in known}
    (node,) = node_specs({**of_node, "autostart": "true"}, environment)
    node = replace(node, parameters={**node.parameters, "report.include_text": True})
    words = ["replay", f"--node={node.whole_name}"]
    for option in _OPTIONS:
        if values[option.name]:
            words.append(f"--{option.name.replace('_', '-')}={values[option.name]}")
    words += [f"--remap={pair}" for pair in values["remap"].split()]
    return node, CommandSpec("edgellm_replay", (*words, "--", values["bag"]), environment=node.environment)
