"""Say whether this machine can run an engine directory as a parameter file has it, before a robot depends on it.

Nothing is loaded and nothing is changed: files are compared with what was built, packages with what is required, memory
with what is free, and the parameters with what the node and the engine take. Ends with a pass or a numbered list of
problems, each with what to do about it. Exit status: 0 a pass, 1 problems, 2 a command line that cannot be taken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import EdgeLLMError, RefusalCode
from .findings import Findings, Verdict

_LONGEST_LOOK = 600.0  # s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "engine_dir", nargs="?", type=Path, metavar="ENGINE_DIR", help="engine directory (default: that of the file)"
    )
    parser.add_argument("--params-file", type=Path, metavar="FILE", help="parameters of the node, YAML")
    parser.add_argument("--node", default="/edgellm", metavar="NAME", help="whole name of the node (%(default)s)")
    parser.add_argument("--backend", metavar="NAME", help="before that of the file (default: auto)")
    parser.add_argument(
        "--remap", action="append", default=[], metavar="TOPIC:=TOPIC", help="a topic of the node, and the robot's"
    )
    parser.add_argument(
        "--live", type=float, metavar="S", help="look for so many seconds at what is published now, too"
    )
    parser.add_argument("--load", action="store_true", help="load the engine and run it once, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 where nothing keeps it from running, 1 otherwise."""
    from .assignment import node_name, remapping

    if arguments.live is not None and not (math.isfinite(arguments.live) and 0 < arguments.live <= _LONGEST_LOOK):
        raise EdgeLLMError(
            f"--live is {arguments.live}; want more than 0 s, to {_LONGEST_LOOK:g}.", RefusalCode.BAD_PARAMETER
        )
    remappings = [remapping(text) for text in arguments.remap]
    node = node_name(arguments.node)
    findings = Findings()
    with ExitStack() as stack:
        place = _check(findings, arguments, node, remappings, stack)
    if arguments.json:
        print(json.dumps({"engine_dir": place, **findings.to_json()}, ensure_ascii=False, indent=1))
        return 1 if findings.problems else 0
    print("\n".join(findings.lines()))
    count = len(findings.problems)
    if count:
        print(f"This machine cannot run {place or 'an engine'} so: {count} problem{'s' if count > 1 else ''}.")
    else:
        print(f"Pass: this machine can run {place}.")
    return 1 if count else 0


def _check(
    findings: Findings,
    arguments: argparse.Namespace,
    node: tuple[str, str],
    remappings: Sequence[tuple[str, str]],
    stack: ExitStack,
) -> str:
    """Everything, in the order in which it is told; gives the place of the engine."""
    from ..ros.engine_host import directory_of
    from ..ros.parameter_file import read_parameter_file
    from .check_machine import check_backend, check_files
    from .check_packages import check_packages
    from .check_robot import check_actions, check_inputs, check_parameters

    namespace, name = node
    given: dict[str, Any] = {}
    if arguments.params_file:
        with findings.of("parameters"):
            given = read_parameter_file(arguments.params_file, name, namespace)
            if not given:
                findings.warning(
                    "parameters",
                    f"{arguments.params_file} has nothing for the node {arguments.node}; want '/**:' or its name.",
                )
    settings = check_parameters(findings, given, arguments.params_file)
    engine = settings.engine
    if arguments.engine_dir:
        engine = replace(engine, directory=str(arguments.engine_dir))
    if arguments.backend:
        engine = replace(engine, backend=arguments.backend)
    settings = replace(settings, engine=engine)
    try:
        path = directory_of(engine, settings.fake, stack)
    except EdgeLLMError as error:
        if not findings.problems:
            raise
        findings.problem("directory", str(error))  # the file may have had it
        return engine.directory
    whole = check_files(findings, path)
    with findings.of("packages"):
        check_packages(findings, _needs(settings, whole is not None and (whole.sees or whole.policy is not None)))
    if whole is not None:
        check_backend(findings, whole.directory, engine.backend, engine.threads, engine.memory_reserve_mb)
    has_ros = _check_ros(findings, wanted=arguments.params_file is not None or arguments.live is not None)
    if whole is not None:
        resolve = _resolver(namespace, remappings)
        cameras = check_inputs(findings, settings, whole.policy, whole.sees, resolve)
        names = () if whole.policy is None else check_actions(findings, settings, whole.policy)
        if arguments.live is not None and has_ros:
            from .check_live import check_live

            with findings.of("live"):
                check_live(findings, arguments.live, given, cameras, whole.policy, names, resolve)
        if arguments.load and not findings.problems:
            _load(findings, whole.directory, engine.backend, engine.threads)
    return str(path)


def _needs(settings: Any, sees: bool) -> list[Any]:
    """Extras of this package that these settings ask for."""
    from .check_packages import Need

    needs = []
    if sees:
        compressed = "compressed" in settings.images.transport
        reason = "images.transport compressed" if compressed else "what decodes compressed pictures"
        needs.append(Need("vision", reason, Verdict.PROBLEM if compressed else Verdict.WARNING))
    if settings.engine.backend == "openvino":
        needs.append(Need("openvino", "engine.backend openvino"))
    if settings.guide.kind != "none":
        needs.append(Need("guided", f"guide.kind {settings.guide.kind}"))
    return needs


def _check_ros(findings: Findings, *, wanted: bool) -> bool:
    """Whether the node could start here; that it cannot is a problem where it is ``wanted``, and not for Python."""
    from ..ros.surroundings import find_surroundings
    from .node_session import find_packages

    find_packages()
    try:
        found = find_surroundings(os.environ)
    except EdgeLLMError as error:
        findings.add("ros", Verdict.PROBLEM if wanted else Verdict.WARNING, str(error))
        return False
    findings.ok("ros", f"{found.summary}.")
    for sentence in found.warnings:
        findings.warning("ros", sentence)
    return True


def _load(findings: Findings, directory: Any, backend: str, threads: int) -> None:
    from .info import libraries

    with findings.of("load"):
        for name, library in libraries(directory, backend, threads).items():
            findings.ok("load", f"{name} runs on {library}.")


def _resolver(namespace: str, remappings: Sequence[tuple[str, str]]) -> Callable[[str], str]:
    """Gives the whole name of a topic as ROS would."""

    def whole(topic: str) -> str:
        parts = [*namespace.split("/"), *topic.split("/")] if not topic.startswith("/") else topic.split("/")
        return "/".join(["", *filter(None, parts)])

    renamed = {whole(before): whole(after) for before, after in remappings}
    return lambda topic: renamed.get(whole(topic), whole(topic))
