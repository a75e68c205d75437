"""Play a recording of rosbag2 to the node and say whether it answers and acts as it did before.

The node runs in a process of its own, takes its time from the recording and talks on this machine only; with `--node`
it is one that runs already, in the ROS domain of the environment. What it makes of the recording is kept as digests,
with seeds, stamps and settings: `--output` writes them, `--expect` compares and names the first answer or chunk that
differs. Chunks are equal at any pace where `action.pairing` is every, and answers where `generation.seed` is not -1 or
`generation.temperature` is 0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..errors import EdgeLLMError, RefusalCode
from .assignment import node_name, node_parameter, remapping
from .node_session import (
    LAST_DOMAIN,
    NodeSession,
    attached_session,
    check_ros,
    find_profile,
    node_session,
    say,
    set_environment,
)

SETTLE = 10.0  # s
_OF_A_START = ("engine_dir", "params_file", "set", "domain")  # options that are for a node which is started here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bag", type=Path, metavar="BAG", help="folder of the recording, or its mcap or sqlite3 file")
    parser.add_argument("--engine-dir", type=Path, metavar="DIR", help="engine directory (default: the file's)")
    parser.add_argument("--params-file", type=Path, metavar="FILE", help="parameters of the node, YAML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PARAMETER=VALUE", help="a parameter, before that of the file"
    )
    parser.add_argument("--node", metavar="NAME", help="play to this one, such as /left/edgellm, and start none")
    parser.add_argument(
        "--remap", action="append", default=[], metavar="TOPIC:=TOPIC", help="a topic of the recording, and the node's"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="publish this too: a question or a task")
    parser.add_argument(
        "--prompt-after", type=float, default=0.0, metavar="S", help="seconds from the first message (default: 0)"
    )
    parser.add_argument("--rate", type=float, default=1.0, metavar="X", help="pace; 0.5 is half as fast (default: 1)")
    parser.add_argument(
        "--settle", type=float, default=SETTLE, metavar="S", help="seconds for what runs at the end (default: 10)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write what came")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="compare with what came another time")
    parser.add_argument("--json", action="store_true", help="print what came as one JSON object")
    parser.add_argument(
        "--domain", type=int, metavar="N", help=f"ROS domain, 0 to {LAST_DOMAIN} (default: one for this process)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when all came, equal to what was expected; 1 when not."""
    for name, least in (("rate", 0.01), ("settle", 0.0), ("prompt_after", 0.0)):
        value = getattr(arguments, name)
        if not (math.isfinite(value) and least <= value <= 1000.0):
            raise _bad(f"--{name.replace('_', '-')} is {value}; want {least:g} to 1000.")
    for name in _OF_A_START if arguments.node else ():
        if getattr(arguments, name) not in (None, []):
            raise _bad(f"--{name.replace('_', '-')} is for a node that is started here; leave it out beside --node.")
    settings = dict(node_parameter(text) for text in arguments.set)
    remappings = dict(remapping(text) for text in arguments.remap)
    from ..ros.replay_record import first_difference, load_record
    from ..ros.surroundings import find_surroundings

    expected = load_record(arguments.expect) if arguments.expect else None
    if arguments.params_file and not arguments.params_file.is_file():
        raise _bad(f"--params-file {arguments.params_file} is no file; want the YAML file of the node.")
    if arguments.node:
        find_profile()
        find_surroundings(os.environ)  # what is set there is somebody else's
    else:
        set_environment(arguments.domain)
        check_ros()
    found = _play(arguments, settings, remappings)
    if arguments.output:
        found.save(arguments.output)
    if arguments.json:
        say(json.dumps(found.to_json()))
    else:
        say(f"{len(found.answers)} answers and {len(found.chunks)} chunks came.")
    if expected is None:
        return 0
    difference = first_difference(expected, found)
    if not arguments.json or difference:
        say(f"Not as in {arguments.expect}: {difference}" if difference else f"As in {arguments.expect}.")
    return 1 if difference else 0


def _play(arguments: argparse.Namespace, settings: dict[str, Any], remappings: dict[str, str]) -> Any:
    from ..ros.bag import Bag
    from ..ros.client import spin_until
    from ..ros.replay import Prompt, ReplayClient
    from ..ros.replay_stamps import strange_stamps

    prompt = None if arguments.prompt is None else Prompt(arguments.prompt, arguments.prompt_after)
    with Bag(arguments.bag) as bag, _session(arguments, settings, ReplayClient) as session:
        client = session.client
        client.open(bag, lambda done, timeout: spin_until(session.executor, done, timeout), remappings)
        if not arguments.json:
            left = f"; left out {', '.join(client.left_out)}" if client.left_out else ""
            say(f"Playing {', '.join(client.played)}{left}.")
        if strange := strange_stamps(bag, client.played):
            print(strange, file=sys.stderr, flush=True)
        client.play(bag, session.executor, rate=arguments.rate, settle=arguments.settle, prompt=prompt)
        session.check()
        return client.record()


def _session(
    arguments: argparse.Namespace, settings: dict[str, Any], client: type[Any]
) -> AbstractContextManager[NodeSession]:
    """With the node that is named, or with one of its own."""
    from dataclasses import replace

    from ..ros.launch_spec import node_specs

    if arguments.node:
        namespace, name = node_name(arguments.node)
        return attached_session(arguments.node, lambda: client(server=name, namespace=namespace or None))
    given = {"use_sim_time": "true"}
    if arguments.engine_dir:
        given["engine_dir"] = str(arguments.engine_dir)
    if arguments.params_file:
        given["params_file"] = str(arguments.params_file)
    (spec,) = node_specs(given)
    spec = replace(spec, parameters={**spec.parameters, "report.include_text": True, **settings})
    return node_session([spec], lambda spec: client(server=spec.name), quiet=arguments.json)


def _bad(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
