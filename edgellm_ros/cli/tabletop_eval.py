"""Run the tabletop's policy in closed loop and print success, accuracy, latency and smoothness.

In one process the world waits for the policy, so equal options give equal episodes; with --node it goes through the
node and its topics in real time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.registry import NAMES as BACKENDS
from ..errors import RequestError
from .node_session import LAST_DOMAIN, check_ros, node_session, set_environment

if TYPE_CHECKING:
    from ..tabletop.evaluation import EvaluationSettings

_SPLICES = ("replace", "blend", "ensemble", "rtc")
_LARGEST = 1_000_000
BASELINES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--engine-dir", metavar="DIR", help="engine directory (default: the shipped checkpoint, built first)"
    )
    parser.add_argument("--precision", metavar="NAME", help="as of 'edgellm build' (default: fp32)")
    parser.add_argument("--episodes", type=int, default=60, metavar="N", help="motion tasks (default: %(default)s)")
    parser.add_argument(
        "--held-out", type=int, metavar="N", help="motion tasks with combinations never trained on (default: half)"
    )
    parser.add_argument("--questions", type=int, default=60, metavar="N", help="questions (default: %(default)s)")
    parser.add_argument(
        "--controls",
        type=int,
        metavar="N",
        help="episodes of each control: doing nothing, wandering, another's prompt, black pictures "
        f"(default: {BASELINES} of the first two)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first episode (default: %(default)s)")
    parser.add_argument(
        "--execute-steps",
        type=int,
        default=6,
        metavar="N",
        help="ticks of 1/15 s from one chunk to the next (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="denoise steps (default: the policy's own)")
    parser.add_argument(
        "--pruner", type=float, default=0.0, metavar="RATIO", help="share of visual tokens to leave out (default: none)"
    )
    parser.add_argument(
        "--latency", type=float, default=0.0, metavar="MS", help="time that a chunk comes late (default: %(default)g)"
    )
    parser.add_argument("--splice", default="replace", choices=_SPLICES, help="how chunks meet (default: %(default)s)")
    parser.add_argument(
        "--blend-steps", type=int, default=3, metavar="N", help="of blend and rtc (default: %(default)s)"
    )
    parser.add_argument("--node", action="store_true", help="through the node and its topics, in real time")
    parser.add_argument(
        "--domain",
        type=int,
        metavar="N",
        help=f"ROS domain of --node, 0 to {LAST_DOMAIN} (default: one for this process)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="of the engines; 0: all physical cores (default: 1)"
    )
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help=f"{', '.join(BACKENDS)} (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print; 0 when it was measured."""
    from ..engine_format import open_engine_directory
    from ..tabletop.evaluation import evaluate

    settings = _settings(arguments)
    with tempfile.TemporaryDirectory() as folder:
        from .engine_cache import build_tabletop

        place = Path(arguments.engine_dir) if arguments.engine_dir else Path(folder) / "engine"
        engine = place if arguments.engine_dir else build_tabletop(place, arguments.precision or "fp32")
        result = _through_node(engine, arguments, settings) if arguments.node else evaluate(engine, settings, _progress)
        precision = open_engine_directory(engine).manifest.precision
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    names = ("execute_steps", "steps", "pruner", "latency", "splice", "blend_steps")
    result["settings"] = {"precision": precision, **{name: getattr(arguments, name) for name in names}}
    print(json.dumps(result) if arguments.json else _table(result))
    return 0


def _settings(arguments: argparse.Namespace) -> EvaluationSettings:
    from ..action.timeline import Splice
    from ..tabletop.evaluation import EvaluationSettings
    from ..tabletop.timed_episodes import Timing
    from ..vision.pruner import VisualPrunerConfig

    counts = {name: getattr(arguments, name) for name in ("episodes", "questions", "seed")}
    counts["controls"] = arguments.controls or 0
    counts["baselines"] = min(BASELINES, arguments.episodes) if arguments.controls is None else arguments.controls
    counts["held_out"] = arguments.episodes // 2 if arguments.held_out is None else arguments.held_out
    ranges = {**dict.fromkeys(counts, (0, _LARGEST)), "execute_steps": (1, 16), "blend_steps": (1, 4096)}
    for name, (least, most) in ranges.items():
        value = counts[name] if name in counts else getattr(arguments, name)
        if not least <= value <= most:
            raise RequestError(f"--{name.replace('_', '-')} is {value}; want {least} to {most}.")
    if not (counts["episodes"] or counts["held_out"] or counts["questions"]):
        raise RequestError("--episodes, --held-out and --questions are all 0; want one of them above 0.")
    if not 0 <= arguments.latency <= 900:
        raise RequestError(f"--latency is {arguments.latency:g}; want 0 to 900 ms: a chunk lasts 1067 ms.")
    if not 0 <= arguments.pruner < 1:
        raise RequestError(f"--pruner is {arguments.pruner:g}; want a share from 0 to below 1.")
    if arguments.node and (arguments.latency or arguments.controls):
        raise RequestError("--latency and --controls are not for --node; leave one of them out.")
    if arguments.domain is not None and not arguments.node:
        raise RequestError("--domain is given without --node; add it.")
    if arguments.precision is not None and arguments.engine_dir is not None:
        raise RequestError("--precision is of what is built, and --engine-dir is built already; leave one of them out.")
    return EvaluationSettings(
        **counts,
        timing=Timing(
            arguments.latency / 1000.0, arguments.execute_steps, Splice(arguments.splice), arguments.blend_steps
        ),
        denoise_steps=arguments.steps,
        pruner=VisualPrunerConfig(enabled=True, reduction_ratio=arguments.pruner) if arguments.pruner else None,
        threads=arguments.threads,
        backend=arguments.backend,
    )


def _through_node(engine: Path, arguments: argparse.Namespace, settings: EvaluationSettings) -> dict[str, Any]:
    set_environment(arguments.domain)
    check_ros()
    from ..tabletop.client import TabletopClient
    from ..tabletop.expert import TICK
    from ..tabletop.launch_spec import tabletop_specs
    from ..tabletop.node_evaluation import evaluate_node

    rate = 1.0 / (settings.timing.period * TICK)
    world, node = tabletop_specs({"engine_dir": str(engine), "rate": str(rate), "splice": arguments.splice})
    engine_settings = {"engine.threads": arguments.threads, "engine.backend": arguments.backend}
    specs = (world, replace(node, parameters={**node.parameters, **engine_settings}))
    changes = {
        "action.denoise_steps": arguments.steps,
        "action.blend_steps": arguments.blend_steps,
        "visual_pruner.enabled": bool(arguments.pruner),
        "visual_pruner.allow_with_actions": bool(arguments.pruner),
        **({"visual_pruner.reduction_ratio": arguments.pruner} if arguments.pruner else {}),
    }
    with node_session(specs, lambda spec: TabletopClient(server=spec.name), quiet=arguments.json) as session:
        session.client.set_parameters(session.executor, changes)
        return evaluate_node(session.client, session.executor, settings, _progress)


def _progress(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {done} of {total}\033[K", end="", file=sys.stderr, flush=True)


def _table(result: dict[str, Any]) -> str:
    rows = [
        ("motion tasks", result["success_rate"], f"of {result['episodes']}"),
        *((f"  {name.replace('_', ' ')}", value, "") for name, value in result["per_task"].items()),
        ("held-out combinations", result["held_out"]["success_rate"], f"of {result['held_out']['episodes']}"),
        ("questions", result["answer_accuracy"], f"of {result['questions']}"),
        *((f"  {name}", value, "") for name, value in result["per_question"].items()),
        *((f"control: {name.replace('_', ' ')}", value, "") for name, value in result.get("controls", {}).items()),
    ]
    lines = [f"{name:<28}{100 * value:6.1f} %  {count}" for name, value, count in rows if value is not None]
    for name, label in (("chunk_latency_ms", "chunk latency"), ("staleness_ms", "age of what is followed")):
        if result[name] is not None:
            lines.append(f"{label}: {result[name]['median']} ms median, {result[name]['p95']} ms p95")
    lines += [f"jerk at {name}: {value} rad/s^3" for name, value in result["seam_jerk"].items()]
    return "\n".join(line.rstrip() for line in lines)
