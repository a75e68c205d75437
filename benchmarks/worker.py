"""The child's end: load one engine, answer rounds until the pipe closes.

An engine is a class whose constructor takes its options as keywords (``threads`` among them), with ``versions()``
(name -> version), one method per task that takes the case's arguments as keywords and returns figures by metric name,
and ``close()``. It runs under whatever Python has its packages, so this file needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from typing import Any


def main(arguments: list[str]) -> int:
    """``worker COMMANDS ANSWERS MODULE:CLASS OPTIONS``; the first two are file descriptors."""
    commands, answers, program, options = arguments
    output = os.fdopen(int(answers), "w", encoding="utf-8", buffering=1)
    module, _, name = program.partition(":")
    try:
        engine = getattr(importlib.import_module(module), name)(**json.loads(options))
        send(output, {"versions": {"python": platform.python_version(), **engine.versions()}})
    except Exception as error:
        send(output, {"error": sentence(error)})
        return 1
    with os.fdopen(int(commands), encoding="utf-8") as lines:
        for line in lines:
            message = json.loads(line)
            try:
                send(output, {"values": getattr(engine, message["task"])(**message["arguments"])})
            except Exception as error:
                send(output, {"error": sentence(error)})
    engine.close()
    return 0


def send(output: Any, message: dict[str, Any]) -> None:
    output.write(json.dumps(message) + "\n")
    output.flush()


def sentence(error: BaseException) -> str:
    """One line for the table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
