"""Guided JSON and adapters: what each costs of a decode step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..harness import Case, Metric
from ..workspace import Workspace

ARGUMENTS = {"prompt_tokens": 128, "tokens": 64}
PROGRAM = "benchmarks.ours_shaped:ShapedRuntime"
RANK = 8
ROOM = ("--lora-rank", str(RANK), "--lora-slots", "4")
USUAL = ("q_proj", "v_proj")  # what PEFT changes by default
USUAL_ROOM = (*ROOM, "--lora-targets", ",".join(USUAL))


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


def _adapter(workspace: Workspace, name: str, room: tuple[str, ...], targets: tuple[str, ...], wanted: str) -> Case:
    return Case(
        name,
        replace(workspace.ours("int8", room), program=PROGRAM),
        (Metric("adapter_cost", "% of a step", wanted), Metric("adapter_decode_rate", "tokens/s")),
        "adapter_decode",
        {**ARGUMENTS, "rank": RANK, "targets": targets},
    )


def adapter(workspace: Workspace) -> Case:
    return _adapter(workspace, "adapter_int8", USUAL_ROOM, USUAL, "< 5")


def whole_adapter(workspace: Workspace) -> Case:
    return _adapter(workspace, "whole_adapter_int8", ROOM, ("_proj",), "what it adds to the weights: 7")


def room(workspace: Workspace) -> Case:
    return Case(
        "room_for_adapters_int8",
        workspace.ours("int8", USUAL_ROOM),
        (Metric("decode_rate", "tokens/s", ">= 0.95 x without room"),),
        "decode",
        ARGUMENTS,
        (
            replace(workspace.ours("int8"), label="edgellm int8 without room"),
            replace(workspace.ours("int8", ROOM), label="edgellm int8 with room in all projections"),
        ),
    )


CASES: dict[str, Callable[[Workspace], Case]] = {
    "guided_json_int8": guided,
    "adapter_int8": adapter,
    "whole_adapter_int8": whole_adapter,
    "room_for_adapters_int8": room,
}
