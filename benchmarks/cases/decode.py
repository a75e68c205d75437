"""Decoding one sequence, greedy, from context 128: tokens per second at equal bits per weight."""

from __future__ import annotations

from collections.abc import Callable

from ..harness import Case, EngineSpec, Metric
from ..workspace import GEMMA, Workspace

ARGUMENTS = {"prompt_tokens": 128, "tokens": 64}
SHARE = (Metric("python_share", "% of a step", "< 5"), Metric("python_time", "us a step"))


def int8(workspace: Workspace) -> Case:
    return Case(
        "decode_int8",
        workspace.ours("int8"),
        (Metric("decode_rate", "tokens/s", ">= 1.10 x llama.cpp q8_0"), *SHARE),
        "decode",
        ARGUMENTS,
        (workspace.llama_cpp("q8_0"),),
    )


def int4(workspace: Workspace) -> Case:
    return Case(
        "decode_int4",
        workspace.ours("int4"),
        (Metric("decode_rate", "tokens/s", ">= 1.00 x llama.cpp q4_0"), *SHARE),
        "decode",
        ARGUMENTS,
        (workspace.llama_cpp("q4_0"),),
    )


def gemma(workspace: Workspace) -> Case:
    return Case(
        "decode_gemma3_int4",
        workspace.ours("int4", model=GEMMA),
        (Metric("decode_rate", "tokens/s", ">= 1.00 x llama.cpp q4_k_m"), *SHARE),
        "decode",
        ARGUMENTS,
        (workspace.llama_cpp_gemma(),),
    )


def fp32(workspace: Workspace) -> Case:
    memory = EngineSpec("memory read", "benchmarks.memory_bandwidth:MemoryBandwidth")
    return Case(
        "decode_fp32",
        workspace.ours("fp32"),
        (
            Metric("decode_rate", "tokens/s", ">= 0.95 x llama.cpp f32"),
            Metric("weight_traffic", "GB/s", "fraction of the memory's"),
            *SHARE,
        ),
        "decode",
        ARGUMENTS,
        (workspace.llama_cpp("f32"), workspace.torch(), memory),
    )


CASES: dict[str, Callable[[Workspace], Case]] = {
    "decode_int8": int8,
    "decode_int4": int4,
    "decode_gemma3_int4": gemma,
    "decode_fp32": fp32,
}
