"""What ``tabletop.launch.py`` and ``edgellm demo`` start: the world and the node that acts in it, as plain data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from ..errors import EdgeLLMError, RefusalCode
from ..ros.launch_spec import LaunchArgument, NodeSpec, ParameterValue, argument_values, boolean, profile_environment
from .cameras import CAMERA_NAMES

LAST_SEED = 2**31 - 1
SPEEDS = (0.05, 50.0)  # simulated seconds in one second
_RATES = (0.1, 100.0)  # chunks a second
_LEVELS = ("debug", "info", "warn", "error", "fatal")
_SPLICES = ("replace", "blend", "ensemble", "rtc")


def tabletop_arguments(engine_dir: str = "") -> tuple[LaunchArgument, ...]:
    """All arguments of ``tabletop.launch.py``; ``engine_dir`` is the default of the first."""
    return (
        LaunchArgument("engine_dir", engine_dir, "Engine directory of the policy; built first where nothing is."),
        LaunchArgument("seed", "0", "Seed of the first episode: the scene and its task."),
        LaunchArgument("real_time_factor", "1.0", "Simulated seconds in one second."),
        LaunchArgument("rate", "2.5", "Action chunks a second."),
        LaunchArgument("splice", "replace", "How a new chunk meets the one that runs.", _SPLICES),
        LaunchArgument("execute_steps", "0", "Actions of each chunk that are followed; 0 follows all."),
        LaunchArgument("simulated_time", "true", "Take the time from the world's /clock.", ("true", "false")),
        LaunchArgument("log_level", "warn", "Lowest level to log.", _LEVELS),
    )


def tabletop_specs(arguments: Mapping[str, str], environment: Mapping[str, str] | None = None) -> tuple[NodeSpec, ...]:
    """The world and the node, in this order.

    :raises EdgeLLMError: an unknown argument, or a value that is not what the argument takes.
    """
    values = argument_values(tabletop_arguments(), arguments)
    simulated = boolean(values["simulated_time"])
    profile = profile_environment(os.environ if environment is None else environment)
    world: dict[str, ParameterValue] = {
        "seed": _whole(values, "seed", LAST_SEED),
        "real_time_factor": _number(values, "real_time_factor", *SPEEDS),
        "simulated_time": simulated,
    }
    node: dict[str, ParameterValue] = {
        "use_sim_time": simulated,
        "autostart": True,
        "engine.directory": values["engine_dir"],
        "engine.threads": 1,  # of a policy so small, a second one waits for the others more than it computes
        "cameras": list(CAMERA_NAMES),
        "generation.temperature": 0.0,
        "images.on_missing": "wait",
        "prompt.on_busy": "replace",
        "action.rate": _number(values, "rate", *_RATES),
        "action.splice": values["splice"],
        "action.blend_steps": 3,  # a chunk has only 16 actions, of which six are followed
        "action.execute_steps": _whole(values, "execute_steps", 4096),
        "safety.max_state_age": 0.5,
    }
    return (
        NodeSpec(
            name="tabletop",
            namespace="",
            parameters=world,
            log_level=values["log_level"],
            environment=profile,
            executable="tabletop_world",
            module="edgellm_ros.tabletop.world_process",
        ),
        NodeSpec(
            name="edgellm",
            namespace="",
            parameters=node,
            log_level=values["log_level"],
            environment=profile,
            remappings=(("action_trajectory", "joint_trajectory"),),
        ),
    )


def _number(values: Mapping[str, str], name: str, least: float, most: float) -> float:
    try:
        found = float(values[name])
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise _refusal(name, values[name], f"a number from {least:g} to {most:g}")
    return found


def _whole(values: Mapping[str, str], name: str, most: int) -> int:
    text = values[name]
    if not (text.isascii() and text.isdecimal() and int(text) <= most):
        raise _refusal(name, text, f"a whole number from 0 to {most}")
    return int(text)


def _refusal(name: str, found: str, wanted: str) -> EdgeLLMError:
    return EdgeLLMError(f"The launch argument {name} is {found!r}; want {wanted}.", RefusalCode.BAD_PARAMETER)
