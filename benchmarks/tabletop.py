"""``python -m benchmarks.tabletop``: every figure of the tabletop policy's model card, as rows of a results file.

Successes are counted by ``edgellm tabletop-eval``, some cases side by side, since equal options give equal episodes
whatever the machine does meanwhile. Chunks are timed behind them, one run at a time and in turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .harness import Metric, Row, device_name
from .run import write

_PLAIN = ("--held-out", "0", "--questions", "0", "--controls", "0")
_PRUNED = ("--held-out", "0", "--questions", "200", "--controls", "0")
CASES: Mapping[str, tuple[int, tuple[str, ...]]] = {  # episodes and options
    "tabletop": (300, _PLAIN),
    "tabletop held out and questions": (0, ("--held-out", "300", "--questions", "500", "--controls", "50")),
    "tabletop 150 ms late, replace": (300, (*_PLAIN, "--latency", "150")),
    "tabletop 150 ms late, blend 3": (300, (*_PLAIN, "--latency", "150", "--splice", "blend")),
    "tabletop 150 ms late, rtc 3": (300, (*_PLAIN, "--latency", "150", "--splice", "rtc")),
    "tabletop 150 ms late, blend 8": (
        300, (*_PLAIN, "--latency", "150", "--splice", "blend", "--blend-steps", "8"),
    ),
    "tabletop pruner 0.25": (300, (*_PRUNED, "--pruner", "0.25")),
    "tabletop pruner 0.5": (300, (*_PRUNED, "--pruner", "0.5")),
    "tabletop 5 denoise steps": (300, (*_PLAIN, "--steps", "5")),
    "tabletop 2 denoise steps": (300, (*_PLAIN, "--steps", "2")),
    "tabletop 1 denoise step": (300, (*_PLAIN, "--steps", "1")),
}  # fmt: skip
CHUNKS: Mapping[str, tuple[int, tuple[str, ...]]] = {  # threads and options
    "10 denoise steps, 1 thread": (1, ()),
    "5 denoise steps, 1 thread": (1, ("--steps", "5")),
    "2 denoise steps, 1 thread": (1, ("--steps", "2")),
    "1 denoise step, 1 thread": (1, ("--steps", "1")),
    "10 denoise steps, 2 threads": (2, ()),
    "pruner 0.25, 1 thread": (1, ("--pruner", "0.25")),
    "pruner 0.5, 1 thread": (1, ("--pruner", "0.5")),
}  # fmt: skip
CHUNK_EPISODES = 3  # of a round: about 60 chunks
TIMED = ("chunks", "world")


def evaluation(engine: Path, episodes: int, threads: int, options: Sequence[str]) -> dict[str, Any]:
    """The object that ``edgellm tabletop-eval --json`` prints."""
    command = [str(Path(sys.executable).with_name("edgellm")), "tabletop-eval", "--engine-dir", str(engine), "--json",
               "--threads", str(threads), "--episodes", str(episodes), *options]  # fmt: skip
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {found.returncode}: {found.stderr.strip()[-500:]}")
    return dict(json.loads(found.stdout))


def figures(result: Mapping[str, Any]) -> Iterator[tuple[Metric, float]]:
    """Metric and value of everything that an evaluation counted."""

    def shares(name: str, unit: str, total: float | None, parts: Mapping[str, float]) -> Iterator[tuple[Metric, float]]:
        if total is not None:
            yield Metric(name, unit), total
        yield from ((Metric(f"{name} {part}", unit), value) for part, value in parts.items())

    yield from shares("success_rate", f"of {result['episodes']} episodes", result["success_rate"], result["per_task"])
    unseen = result["held_out"]
    if unseen["success_rate"] is not None:
        yield Metric("success_rate held out", f"of {unseen['episodes']} episodes"), unseen["success_rate"]
    asked = f"of {result['questions']} questions"
    yield from shares("answer_accuracy", asked, result["answer_accuracy"], result["per_question"])
    for name, value in result.get("controls", {}).items():
        yield Metric(f"success_rate control {name}", "of 50 episodes"), value
    if result["seam_jerk"]:
        yield from ((Metric(f"jerk {place}", "rad/s^3"), value) for place, value in result["seam_jerk"].items())


def world_factor(seconds: float = 60.0) -> float:
    """Simulated seconds in a second of one processor, both pictures drawn at each tick."""
    from edgellm_ros.tabletop.episodes import advance, draw_episode
    from edgellm_ros.tabletop.expert import TICK, expert_command
    from edgellm_ros.tabletop.render import render_views
    from edgellm_ros.tabletop.tasks import TaskBatch

    episode = draw_episode(0)
    worlds, tasks = episode.worlds.copy(), TaskBatch.of([episode.task])
    started = time.process_time()
    for _ in range(round(seconds / TICK)):
        advance(worlds, expert_command(worlds, tasks))
        render_views(worlds, 0)
    return seconds / (time.process_time() - started)


def count(engine: Path, add: Callable[[str, Metric, list[float]], None], names: Sequence[str], jobs: int) -> None:
    """Rows of the cases."""

    def run(name: str) -> tuple[str, dict[str, Any]]:
        episodes, options = CASES[name]
        return name, evaluation(engine, episodes, 1, options)

    with ThreadPoolExecutor(jobs) as pool:
        for name, result in pool.map(run, names):
            for metric, value in figures(result):
                add(name, metric, [value])


def time_chunks(engine: Path, add: Callable[[str, Metric, list[float]], None], rounds: int) -> None:
    """Rows of the chunks' latencies."""
    times: dict[str, list[float]] = {name: [] for name in CHUNKS}
    for _ in range(rounds):
        for name, (threads, options) in CHUNKS.items():
            found = evaluation(engine, CHUNK_EPISODES, threads, [*_PLAIN, *options])
            times[name].append(found["chunk_latency_ms"]["median"])
    for name, values in times.items():
        add(f"tabletop chunk, {name}", Metric("chunk_latency median", "ms"), values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="labels of cases, chunks, world (default: all)")
    parser.add_argument("--checkpoint", type=Path, help="another one than the shipped")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--jobs", type=int, default=2, help="cases side by side (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of the chunks (default: %(default)s)")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    known = [*CASES, *TIMED]
    unknown = [name for name in options.cases if name not in known]
    if unknown:
        parser.error(f"{unknown[0]!r} is no case; want some of {', '.join(known)}")
    names = options.cases or known
    rows: list[Row] = []
    device = device_name(2)
    versions = {name: importlib.metadata.version(name) for name in ("edgellm_ros", "onnxruntime")}
    versions["python"] = platform.python_version()

    def add(case: str, metric: Metric, values: list[float]) -> None:
        rows.append(Row(case, metric, statistics.median(values), tuple(values), device=device, versions=versions))
        print(f"{case:34} {metric.name:34} {rows[-1].ours:10.4g} {metric.unit}", flush=True)
        if options.output is not None:  # after every row, so that a run cut short leaves what it had
            write(options.output, rows)

    with tempfile.TemporaryDirectory() as folder:
        from edgellm_ros.builder.build import build_engine
        from edgellm_ros.tabletop.checkpoint_files import checkpoint_directory

        engine = Path(folder) / "engine"
        build_engine(options.checkpoint or checkpoint_directory(), engine, precision=options.precision)
        count(engine, add, [name for name in names if name in CASES], options.jobs)
        if "chunks" in names:
            time_chunks(engine, add, options.rounds)
        if "world" in names:
            world = [world_factor() for _ in range(options.rounds)]
            add("tabletop world, both pictures 15 times a second",
                Metric("real time factor, processor time of one thread", "x"), world)  # fmt: skip


if __name__ == "__main__":
    main()
