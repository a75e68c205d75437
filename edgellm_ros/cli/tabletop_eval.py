"""Run the tabletop's policy in closed loop and print success, accuracy and latency, without ROS."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..errors import RequestError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--engine", metavar="DIR", help="engine directory (default: the shipped checkpoint, built first)"
    )
    parser.add_argument("--episodes", type=int, default=60, metavar="N", help="motion tasks (default: %(default)s)")
    parser.add_argument(
        "--held-out", type=int, metavar="N", help="motion tasks with combinations never trained on (default: half)"
    )
    parser.add_argument("--questions", type=int, default=60, metavar="N", help="questions (default: %(default)s)")
    parser.add_argument(
        "--controls", type=int, default=0, metavar="N", help="episodes of each baseline and control (default: none)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first episode (default: %(default)s)")
    parser.add_argument(
        "--execute-steps", type=int, default=6, metavar="N", help="rows of a chunk that are followed (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="denoise steps (default: the policy's own)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of the engines (all physical cores)")
    parser.add_argument("--backend", default="auto", help="auto, onnxruntime, ... (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print; 0 when it was measured."""
    from ..tabletop.evaluation import EvaluationSettings, evaluate

    counts = {name: getattr(arguments, name) for name in ("episodes", "questions", "controls", "seed")}
    counts["held_out"] = arguments.episodes // 2 if arguments.held_out is None else arguments.held_out
    for name, value in counts.items():
        if not 0 <= value <= 1_000_000:
            raise RequestError(f"--{name.replace('_', '-')} is {value}; want 0 to 1000000.")
    if not 1 <= arguments.execute_steps <= 16:
        raise RequestError(f"--execute-steps is {arguments.execute_steps}; want 1 to 16, the rows of a chunk.")
    settings = EvaluationSettings(
        **counts,
        execute=arguments.execute_steps,
        denoise_steps=arguments.steps,
        threads=arguments.threads,
        backend=arguments.backend,
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(arguments.engine) if arguments.engine else _build(Path(folder) / "engine")
        result = evaluate(engine, settings, _progress)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(json.dumps(result) if arguments.json else _table(result))
    return 0


def _build(folder: Path) -> Path:
    from ..builder.build import build_engine
    from ..tabletop.checkpoint_files import checkpoint_directory

    source = checkpoint_directory()
    return build_engine(source, folder, policy_settings=source / "policy_settings.yaml")


def _progress(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {done} of {total}\033[K", end="", file=sys.stderr, flush=True)


def _table(result: dict[str, Any]) -> str:
    rows = [
        ("motion tasks", result["success_rate"], result["episodes"]),
        *((f"  {name.replace('_', ' ')}", value, "") for name, value in result["per_task"].items()),
        ("held-out combinations", result["held_out"]["success_rate"], result["held_out"]["episodes"]),
        ("questions", result["answer_accuracy"], result["questions"]),
        *((f"  {name}", value, "") for name, value in result["per_question"].items()),
        *((f"control: {name.replace('_', ' ')}", value, "") for name, value in result.get("controls", {}).items()),
    ]
    lines = [f"{name:<28}{100 * value:6.1f} %  {count}" for name, value, count in rows if value is not None]
    if "chunk_latency_ms" in result:
        latency = result["chunk_latency_ms"]
        lines.append(f"chunk latency: {latency['median']} ms median, {latency['p95']} ms p95")
    lines += [f"jerk at {name}: {value} rad/s^3" for name, value in result["seam_jerk"].items()]
    return "\n".join(line.rstrip() for line in lines)
