"""Measure this package against its peers: ``python -m benchmarks.run``.

Prints one table and, with ``--output``, writes JSON rows. Exit code 0 when every case of ours ran; 1 when one failed
(peers that are missing or crash are named as skipped and do not count); 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .cases import CASES
from .harness import Interleaver, Row, table
from .process import EngineLostError
from .workspace import PreparationError, Workspace


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case", action="append", metavar="NAME", help="a case, or the start of names; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds; one more is run first and dropped")
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))), help="of every engine")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--llama-python", default=sys.executable, metavar="PYTHON", help="has llama-cpp-python")
    parser.add_argument(
        "--torch-python", default=sys.executable, metavar="PYTHON", help="has torch, transformers, gguf"
    )
    parser.add_argument("--lerobot-python", default=sys.executable, metavar="PYTHON", help="has lerobot and torch")
    parser.add_argument(
        "--lerobot-path", default="", metavar="FOLDERS", help="where that Python looks for lerobot's packages first"
    )
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where engines and weights are kept")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or arguments.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    wanted = arguments.case or [""]
    unknown = [name for name in wanted if not any(case.startswith(name) for case in CASES)]
    if unknown:
        parser.error(f"no case starts with {unknown[0]!r}; --list names them")
    arguments.case = [case for case in CASES if any(case.startswith(name) for name in wanted)]
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen cases one after the other."""
    arguments = parse(argv)
    if arguments.list:
        print("\n".join(arguments.case))
        return 0

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    workspace = Workspace(
        threads=arguments.threads,
        llama_python=arguments.llama_python,
        torch_python=arguments.torch_python,
        lerobot_python=arguments.lerobot_python,
        lerobot_path=arguments.lerobot_path,
        say=say,
    )
    if arguments.cache:
        workspace.cache = arguments.cache.resolve()
    interleaver = Interleaver(arguments.rounds, arguments.threads, say=say)
    rows: list[Row] = []
    failed: list[str] = []
    for name in arguments.case:
        try:
            rows += interleaver.run(CASES[name](workspace))
        except (EngineLostError, PreparationError) as error:
            failed.append(f"failed: {name}: {error}")
            say(failed[-1])
        if arguments.output and rows:  # after every case, so that an interrupt loses one case at most
            write(arguments.output, rows)
    if rows:
        print(table(rows))
    print("\n".join(failed), end="\n" if failed else "")
    return 1 if failed else 0


def write(path: Path, rows: Sequence[Row]) -> None:
    """One JSON row per line inside a list."""
    lines = ",\n".join(json.dumps(row.to_json()) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # engines end with us, however we are stopped
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
