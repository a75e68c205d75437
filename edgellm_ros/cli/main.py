"""The command ``edgellm``: one module per subcommand, imported only when it is used."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress

from .. import __version__
from ..errors import EdgeLLMError
from .endings import CLOSED_PIPE, Terminated, discard_output, terminations

# name -> (module with add_arguments(parser) and run(arguments) -> exit code, one line of help)
COMMANDS = {
    "build": ("build", "write an engine directory from a checkpoint"),
    "info": ("info", "print what an engine directory holds"),
    "check": ("check", "say whether this machine can run an engine directory, and what to do if not"),
    "generate": ("generate", "answer one prompt, streamed to the terminal"),
    "act": ("act", "compute one action chunk from a stored observation"),
    "perplexity": ("perplexity", "measure how well an engine directory predicts a text"),
    "replay": ("replay", "play a recording to the node and compare what it says and does with an earlier time"),
    "tabletop-eval": ("tabletop_eval", "measure the tabletop's policy in closed loop"),
    "demo": ("demo", "act and answer in a small simulated world, through the node and its topics"),
    "demo-text": ("demo_text", "start the node, publish a prompt and print the streamed answer"),
}


DESCRIPTION = "Build engine directories, ask them and act with them; 'edgellm COMMAND --help' explains a command."
EXIT_STATUS = "Exit status: 0 success, 1 a run that failed, 2 bad input, 128 and more the signal that ended it."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 is success, 1 a failed run, 2 bad input, 128 and more the signal that ended it."""
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return CLOSED_PIPE


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="edgellm", description=DESCRIPTION, epilog=EXIT_STATUS)
    parser.add_argument("--version", action="version", version=f"edgellm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, help_line) in COMMANDS.items():
        command = commands.add_parser(name, help=help_line)
        if argv and argv[0] == name:
            module = importlib.import_module(f".{module_name}", __package__)
            command.description = module.__doc__
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    try:
        with terminations():
            return int(arguments.run(arguments))
    except EdgeLLMError as error:
        return _told(arguments.command, str(error), 2)
    except KeyboardInterrupt:
        return _told(arguments.command, "interrupted", 130)
    except Terminated as end:
        return _told(arguments.command, f"ended by {end}", end.exit_code)


def _told(command: str, sentence: str, code: int) -> int:
    with suppress(OSError):  # the terminal may be what ended
        print(f"edgellm {command}: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
