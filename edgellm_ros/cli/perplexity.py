"""Measure how well an engine directory predicts a text: lower is better, and comparable for one text and tokenizer."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ..backends.registry import NAMES as BACKENDS
from ..errors import RequestError
from ..json_values import read_text
from ..runtime.perplexity import WINDOW, measure_perplexity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("engine_dir", metavar="ENGINE_DIR", help="engine directory")
    parser.add_argument("text", metavar="TEXT", help="text file, UTF-8")
    parser.add_argument(
        "--window",
        type=int,
        default=WINDOW,
        metavar="N",
        help="most tokens that one is predicted from (default: %(default)s)",
    )
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="of the engine (default: all physical cores)"
    )
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help=f"{', '.join(BACKENDS)} (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print; 0 when it was measured."""
    text = read_text(Path(arguments.text), RequestError, "want a text file in UTF-8")
    start = shown = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() > shown + 1:
            shown = time.monotonic()
            print(f"\r{done} of {total} tokens\033[K", end="", file=sys.stderr, flush=True)

    found = measure_perplexity(
        arguments.engine_dir,
        text,
        window=arguments.window,
        backend=arguments.backend,
        threads=arguments.threads,
        progress=progress,
    )
    seconds = time.monotonic() - start
    if arguments.json:
        content = {"perplexity": found.perplexity, "mean_log_loss": found.mean_log_loss, "tokens": found.tokens}
        print(json.dumps({**content, "seconds": round(seconds, 3)}))
    else:
        print(f"perplexity {found.perplexity:.4f} over {found.tokens} tokens, {seconds:.1f} s")
    return 0
