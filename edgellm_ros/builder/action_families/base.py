"""What a policy family is: how its files are read, which graphs it has, and what its manifest says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...action.policy_manifest import PolicyManifest
from ...engine_format import BuilderLimits
from ..checkpoint import Checkpoint
from ..policy_checkpoint import PolicyCheckpoint
from ..policy_settings import PolicySettings
from ..vision_families.base import Tower
from ..vision_families.layers import Layers


@dataclass(frozen=True)
class LanguagePart:
    """The language model under a policy; ``answers`` says whether it is whole, so that it can generate text too.

    ``vision`` holds the tensors of ``tower``, and with ``levels`` pictures come to it through the processor of its
    files, not through a policy's own steps: then it may take them as bytes. ``limits``: those of an engine that nobody
    gave any; None: as ever.
    """

    text: Checkpoint
    answers: bool
    vision: Checkpoint
    tower: Tower
    limits: BuilderLimits | None = None
    levels: bool = False


@dataclass(frozen=True)
class PolicyFamily:
    """A group of policies with one way to read them; ``model`` is what ``parse`` gave, with a method ``tensors``.

    All of them raise CheckpointError where a file is missing, out of range or of a kind that is not built.
    """

    name: str
    kinds: tuple[str, ...]  # as ``type`` or ``model_type`` of config.json has them
    parse: Callable[[PolicyCheckpoint, PolicySettings], Any]
    stored_name: Callable[[str, str], str]  # of a tensor of the graphs in the checkpoint, after its common prefix
    may_be_left_out: Callable[[str], bool]  # tensors of the checkpoint that the action graphs do not need
    graphs: Mapping[str, Callable[[Layers, Any], None]]  # by file name
    manifest: Callable[[PolicyCheckpoint, Any, PolicySettings], PolicyManifest]
    language: Callable[[PolicyCheckpoint, Any], LanguagePart]
    contracts: tuple[str, ...] = ()  # robots of which one is named, where files do not say which they are for
