"""The command ``edgellm``: one module per subcommand, imported only when it is used."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import EdgeLLMError

# name -> (module with add_arguments(parser) and run(arguments) -> exit code, one line of help)
COMMANDS = {
    "build": ("build", "write an engine directory from a checkpoint"),
    "info": ("info", "print what an engine directory holds"),
    "generate": ("generate", "answer one prompt, streamed to the terminal"),
    "act": ("act", "compute one action chunk from a stored observation"),
    "perplexity": ("perplexity", "measure how well an engine directory predicts a text"),
    "replay": ("replay", "play a recording to the node and compare what it says and does with an earlier time"),
    "tabletop-eval": ("tabletop_eval", "measure the tabletop's policy in closed loop"),
    "demo": ("demo", "act and answer in a small simulated world, through the node and its topics"),
    "demo-text": ("demo_text", "start the node, publish a prompt and print the streamed answer"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 is success, 1 a failed run, 2 bad input, 130 an interrupt."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="edgellm", description=__doc__)
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
        return int(arguments.run(arguments))
    except EdgeLLMError as error:
        print(f"edgellm {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"edgellm {arguments.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
