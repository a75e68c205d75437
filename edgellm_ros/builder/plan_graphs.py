"""Which graphs of an engine directory a TensorRT plan is compiled of, and for which shapes.

The language model has two optimisation profiles: any chunk (prefill), and one position a row (decode); the image tower
has one for each number of images that share a call, and one for the cameras of a policy, whose own graphs have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..action.action_engine import ACTION_GRAPH_FILE
from ..action.policy_manifest import read_policy_manifest
from ..engine_format import ACTION_DIRECTORY, GRAPH_FILE, VISUAL_DIRECTORY, BuilderLimits, EngineDirectory
from ..vision.visual_directory import open_visual_directory
from .plan_profiles import Profile, profile_ranges
from .policy_profiles import policy_profile, policy_tower_profile
from .visual_profiles import visual_profiles, visual_ranges


@dataclass(frozen=True)
class PlanGraph:
    """A graph that gets a plan beside it; ``limits`` are noted in the plan's description."""

    graph: Path
    precision: str
    limits: Mapping[str, int]
    profiles: tuple[Profile, ...]


def language_profiles(limits: BuilderLimits) -> tuple[Profile, ...]:
    """Those of a language model."""

    def profile(chunk: str) -> Profile:
        return lambda name, shape: profile_ranges(name, shape, limits, chunk)

    return profile("prefill"), profile("decode")


def plan_graphs(directory: EngineDirectory) -> list[PlanGraph]:
    """Every graph of an engine directory that a plan is compiled of.

    :raises EngineDirectoryError: the directory ``visual`` fails a check.
    """
    limits = directory.config.limits
    noted = {
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_kv_cache_capacity": limits.max_kv_cache_capacity,
    }
    found = []
    if (directory.path / GRAPH_FILE).is_file():
        graph = directory.path / GRAPH_FILE
        found.append(PlanGraph(graph, directory.manifest.precision, noted, language_profiles(limits)))
    if (directory.path / VISUAL_DIRECTORY).is_dir():
        visual = open_visual_directory(directory.path / VISUAL_DIRECTORY)
        sizes = visual_profiles(visual.tower, limits.max_input_len)
        profiles: tuple[Profile, ...] = tuple(partial(visual_ranges, sizes=each) for each in sizes)
        actions = directory.path / ACTION_DIRECTORY
        manifest = read_policy_manifest(actions) if actions.is_dir() else None
        if manifest is not None:
            # Pictures of one that reasons go the way of the language model's own.
            own = () if manifest.driving is not None else (policy_tower_profile(manifest, visual.tower),)
            profiles = (*(profiles if found else ()), *own)
        found.append(PlanGraph(visual.graph, visual.manifest.precision, noted, profiles))
        if manifest is not None:
            graphs = sorted(actions.glob("*.onnx"), key=lambda graph: graph.name == ACTION_GRAPH_FILE)  # main one last
            profile = policy_profile(manifest, limits)
            found += [PlanGraph(graph, visual.manifest.precision, {}, (profile,)) for graph in graphs]
    return found
