"""Policies: a chunk of SmolVLA's published shape beside lerobot's, and what the node adds to a chunk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..harness import Case, EngineSpec, Metric
from ..policy_node import TASK
from ..policy_shape import FACTS
from ..workspace import Workspace

# precision of the row -> that of the engine directory, and the backend
KINDS = {"fp32": ("fp32", "onnxruntime"), "int8": ("int8", "onnxruntime"), "bf16": ("fp32", "openvino")}


def smolvla(precision: str, workspace: Workspace) -> Case:
    weights, backend = KINDS[precision]
    return Case(
        f"policy_smolvla_{precision}",
        EngineSpec(
            f"edgellm {precision}",
            "benchmarks.ours_policy:Policy",
            {"engine_directory": str(workspace.policy_directory(weights)), "backend": backend},
        ),
        (
            Metric("chunk_time", "ms", "<= fp32 / 1.5; with AMX <= bf16"),
            Metric("vision_time", "ms"),
            Metric("prefix_time", "ms"),
            Metric("denoise_time", "ms"),
        ),
        "chunk",
        {},
        (workspace.lerobot("fp32"), workspace.lerobot("bf16")),
        {**FACTS, "precision": precision, "backend": backend},
    )


def node(workspace: Workspace) -> Case:
    directory = workspace.tabletop_directory()
    return Case(
        "policy_node",
        EngineSpec("edgellm node", "benchmarks.policy_node:PolicyNode", {"engine_directory": str(directory)}),
        (
            Metric("node_overhead", "ms a chunk", "< 1"),
            Metric("node_overhead_p95", "ms a chunk"),
            Metric("node_overhead_cpu", "ms of a processor a chunk"),
            Metric("publish_time", "ms a chunk"),
            Metric("observe_time", "ms a chunk"),
            Metric("chunk_time", "ms"),
        ),
        "session",
        {"chunks": 30},
        facts=_tabletop_facts(directory),
    )


def _tabletop_facts(directory: Path) -> dict[str, Any]:
    from edgellm_ros.action.policy_manifest import ACTION_DIRECTORY, read_policy_manifest
    from edgellm_ros.action.prompt import prompt_text
    from edgellm_ros.runtime.tokenizer import Tokenizer

    manifest = read_policy_manifest(directory / ACTION_DIRECTORY)
    words = Tokenizer.from_directory(directory).encode(prompt_text(manifest, TASK, None))
    views = len(manifest.cameras)
    return {
        "model": "the tabletop's SmolVLA, 11.5 M parameters", "views": views, "view_size": list(manifest.image_size),
        "prefix_tokens": views * manifest.image_tokens + len(words) + 1, "horizon": manifest.horizon,
        "steps": manifest.denoise_steps, "precision": "int8", "backend": "onnxruntime",
    }  # fmt: skip


CASES: dict[str, Callable[[Workspace], Case]] = {
    **{f"policy_smolvla_{precision}": partial(smolvla, precision) for precision in KINDS},
    "policy_node": node,
}
