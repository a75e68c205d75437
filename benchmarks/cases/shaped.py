"""Guided JSON and adapters: what each costs of a decode step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..harness import Case, Metric
from ..workspace import Workspace

ARGUMENTS = {"prompt_tokens": 128, "tokens": 64}
PROGRAM = "benchmarks.ours_shaped:ShapedRuntime"
RANK, SLOTS = 8, 4


def guided(workspace: Workspace) -> Case:
    return Case(
        "guided_json_int8",
        replace(workspace.ours("int8"), program=PROGRAM),
        (
            Metric("guided_cost", "% of a step", "< 10"),
            Metric("guide_time", "us a step"),
            Metric("guided_decode_rate", "tokens/s"),
        ),
        "guided_decode",
        ARGUMENTS,
        (workspace.llama_cpp("q8_0"),),
    )


def adapter(workspace: Workspace) -> Case:
    room = ("--lora-rank", str(RANK), "--lora-slots", str(SLOTS))
    return Case(
        "adapter_int8",
        replace(workspace.ours("int8", room), program=PROGRAM),
        (Metric("adapter_cost", "% of a step", "< 5"), Metric("adapter_decode_rate", "tokens/s")),
        "adapter_decode",
        {**ARGUMENTS, "rank": RANK},
    )


CASES: dict[str, Callable[[Workspace], Case]] = {"guided_json_int8": guided, "adapter_int8": adapter}
