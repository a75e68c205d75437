"""Prefix reuse: a prompt whose first 512 tokens were seen before, against one that is new; 16 tokens follow."""

from __future__ import annotations

from dataclasses import replace

from ..harness import Case, Metric
from ..workspace import Workspace

CACHE_BYTES = 256 * 2**20


def int8(workspace: Workspace) -> Case:
    ours = workspace.ours("int8")
    return Case(
        "prefix_hit_int8",
        replace(ours, options={**ours.options, "cache_bytes": CACHE_BYTES}),
        (
            Metric("hit_speedup", "times", ">= 8"),
            Metric("cold_first_token", "ms"),
            Metric("hit_first_token", "ms"),
        ),
        "prefix_hit",
        {"prefix_tokens": 512, "tokens": 16},
        (workspace.llama_cpp("q8_0"),),
    )


CASES = {"prefix_hit_int8": int8}
