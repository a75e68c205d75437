"""Sequences together: how far decoding four at once scales and what Python adds, and how long a prompt that joins
keeps the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from ..harness import Case, Metric
from ..workspace import Workspace

ARGUMENTS = {"prompt_tokens": 128, "tokens": 64, "sequences": 4}


def int8(workspace: Workspace) -> Case:
    return Case(
        "batch4_int8",
        workspace.ours("int8"),
        (
            Metric("batch_scaling", "x one sequence", ">= 2.0 and >= llama.cpp's own"),
            Metric("batch_decode_rate", "tokens/s of all"),
            Metric("single_decode_rate", "tokens/s"),
            Metric("batch_session_share", "% of a step", "< 3"),
            Metric("batch_python_share", "% of a step", "sampling and embeddings too"),
            Metric("batch_python_time", "us a step"),
        ),
        "batch_decode",
        ARGUMENTS,
        (workspace.llama_cpp("q8_0"),),
    )


def join(workspace: Workspace) -> Case:
    return Case(
        "join_int8",
        workspace.ours("int8"),
        (
            Metric("longest_step", "ms, while a prompt joins", "one chunk of it and a step"),
            Metric("joiner_first_token", "ms"),
            Metric("step_time", "ms, with nobody joining"),
        ),
        "join",
        {"prompt_tokens": 128, "joiner_tokens": 512},
    )


CASES: dict[str, Callable[[Workspace], Case]] = {"batch4_int8": int8, "join_int8": join}
