"""What a policy family is: how its files are read, which graphs it has, and what its manifest says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...action.policy_manifest import PolicyManifest
from ..checkpoint import Checkpoint
from ..policy_checkpoint import PolicyCheckpoint
from ..policy_settings import PolicySettings
from ..vision_families.layers import Layers


@dataclass(frozen=True)
class PolicyFamily:
    """A group of policies with one way to read them; ``model`` is what ``parse`` gave, with a method ``tensors``.

    All of them raise CheckpointError where a file is missing, out of range or of a kind that is not built.
    """

    name: str
    kinds: tuple[str, ...]  # as ``type`` of config.json has them
    parse: Callable[[PolicyCheckpoint], Any]
    stored_name: Callable[[str], str]  # of a tensor of the graphs in the checkpoint
    may_be_left_out: Callable[[str], bool]  # tensors of the checkpoint that the action graphs do not need
    build_prefix: Callable[[Layers, Any], None]
    build_action: Callable[[Layers, Any], None]
    manifest: Callable[[PolicyCheckpoint, Any, PolicySettings], PolicyManifest]
    language: Callable[[PolicyCheckpoint, Any], tuple[Checkpoint, bool]]  # and whether it can generate text
