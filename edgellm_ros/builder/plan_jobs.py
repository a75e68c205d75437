"""Which graphs of an engine directory have plans, and the shapes that each is compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..action.action_engine import ACTION_GRAPH_FILE
from ..action.policy_manifest import read_policy_manifest
from ..engine_format import ACTION_DIRECTORY, GRAPH_FILE, VISUAL_DIRECTORY, VISUAL_GRAPH_FILE, EngineDirectory
from ..vision.visual_directory import open_visual_directory
from .plan_profiles import Shape, profile_ranges
from .policy_profiles import PolicyProfile

Ranges = Callable[[str, Shape], tuple[Shape, Shape, Shape]]  # of an input by its name and shape


@dataclass(frozen=True)
class PlanJob:
    """One graph; ``profiles`` in the order in which they stand in its plan."""

    graph: Path
    precision: str
    profiles: tuple[Ranges, ...]
    limits: Mapping[str, int] = field(default_factory=dict)


def plan_jobs(directory: EngineDirectory) -> list[PlanJob]:
    """The language model where one can answer, and everything that a policy acts with.

    :raises CheckpointError: a policy that has no plans.
    """
    jobs = []
    precision, limits = directory.manifest.precision, directory.config.limits
    graph = directory.path / GRAPH_FILE
    if graph.is_file():
        profiles = tuple(partial(_language_ranges, directory, chunk) for chunk in ("prefill", "decode"))
        sizes = {
            "max_batch_size": limits.max_batch_size,
            "max_input_len": limits.max_input_len,
            "max_kv_cache_capacity": limits.max_kv_cache_capacity,
        }
        jobs.append(PlanJob(graph, precision, profiles, sizes))
    actions = directory.path / ACTION_DIRECTORY
    if not actions.is_dir():
        return jobs
    manifest = read_policy_manifest(actions)
    visual = open_visual_directory(directory.path / VISUAL_DIRECTORY)
    profile = PolicyProfile(manifest, visual.tower)
    graphs = sorted(actions.glob("*.onnx"), key=lambda graph: graph.name == ACTION_GRAPH_FILE)  # the main plan last
    for graph in (visual.path / VISUAL_GRAPH_FILE, *graphs):
        ranges = partial(profile.ranges, graph.parent.name)
        jobs.append(PlanJob(graph, visual.manifest.precision, (ranges,)))
    return jobs


def _language_ranges(directory: EngineDirectory, chunk: str, name: str, shape: Shape) -> tuple[Shape, Shape, Shape]:
    return profile_ranges(name, shape, directory.config.limits, chunk)
