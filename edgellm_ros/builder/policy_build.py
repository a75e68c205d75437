"""The directory ``action`` of an engine directory: a policy's prefix, its action steps and its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..action.fingerprints import Fingerprints, statistics_digest
from ..action.policy_manifest import POLICY_FILE, PolicyManifest
from ..errors import CheckpointError
from .action_families import LanguagePart, PolicyFamily, find_family
from .graph import Graph
from .lowerings.base import Lowering
from .onnx_writer import GraphFiles, lay_out, write_weights
from .policy_checkpoint import PolicyCheckpoint
from .policy_settings import PolicySettings
from .quantize import Precision
from .vision_families.layers import Layers
from .weights import Weight, checkpoint_weight


@dataclass(frozen=True)
class PolicyPlan:
    """Everything about ``action`` that is known before a weight is read."""

    graphs: Mapping[str, tuple[Graph, GraphFiles]]  # by file name
    manifest: PolicyManifest
    language: LanguagePart

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file."""
        sizes = {POLICY_FILE: len(_bytes(self.manifest))}  # a fingerprint is as long as none
        for name, (_, files) in self.graphs.items():
            sizes |= {name: len(files.model), f"{name}.data": files.data_size}
        return sizes

    def digest(self) -> str:
        """Over the graphs and the manifest without its fingerprints."""
        checksum = hashlib.sha256(_bytes(self.manifest))
        for _, files in self.graphs.values():
            checksum.update(hashlib.sha256(files.model).digest())
        return checksum.hexdigest()

    def write(
        self,
        directory: Path,
        fingerprints: Fingerprints,
        write_file: Callable[[Path, bytes], None],
        step: Callable[[int], None],
    ) -> dict[str, int]:
        """Write the directory; returns its files' sizes. Those of the statistics are filled in.

        :raises CheckpointError: a weight cannot be read or is not finite.
        """
        directory.mkdir()
        for name, (graph, files) in self.graphs.items():
            write_weights(graph, files, directory / f"{name}.data", step)
            write_file(directory / name, files.model)
        state, action = self.manifest.state.normalization, self.manifest.action.normalization
        fingerprints = replace(fingerprints, statistics=statistics_digest(state, action))
        write_file(directory / POLICY_FILE, _bytes(replace(self.manifest, fingerprints=fingerprints)))
        return self.sizes


def _bytes(manifest: PolicyManifest) -> bytes:
    return json.dumps(manifest.to_json(), indent=1, ensure_ascii=False).encode()


def plan_policy(
    checkpoint: PolicyCheckpoint, lowering: Lowering, precision: Precision, settings: PolicySettings | None = None
) -> PolicyPlan:
    """Describe the action engines of a policy. Reads no weights.

    :raises CheckpointError: the policy is of a kind that is not built, or a file is missing or disagrees with another.
    """
    family, settings = find_family(checkpoint.kind), settings or PolicySettings()
    if settings.contract and settings.contract not in family.contracts:
        wanted = (
            f"one of {', '.join(family.contracts)}" if family.contracts else "none: its own files say what it takes"
        )
        raise CheckpointError(
            f"the contract {settings.contract!r} is named for a policy of type {checkpoint.kind!r}; want {wanted}."
        )
    model = family.parse(checkpoint, settings)
    weights = _weights(checkpoint, family, model.tensors())
    graphs = {}
    for name, build in family.graphs.items():
        graph = Graph(lowering, precision, 0)
        build(Layers(graph, weights), model)
        graphs[name] = graph, lay_out(graph, name.removesuffix(".onnx"), f"{name}.data")
    manifest = family.manifest(checkpoint, model, settings)
    return PolicyPlan(graphs, manifest, family.language(checkpoint, model))


def _weights(
    checkpoint: PolicyCheckpoint, family: PolicyFamily, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, Weight]:
    """Every tensor of the action graphs, still in its file, by the names that they use."""
    weights: dict[str, Weight] = {}
    root = checkpoint.root
    for name, shape in wanted.items():
        stored = family.stored_name(root, name)
        found = checkpoint.shapes.get(stored)
        if found != shape:
            has = "lacks it" if found is None else f"has it with shape {list(found)}"
            raise CheckpointError(
                f"the policy needs the tensor {stored!r} of shape {list(shape)}; the checkpoint {has}."
            )
        weights[name] = replace(checkpoint_weight(checkpoint, stored), name=name)
    known = {family.stored_name(root, name) for name in wanted}
    for stored in checkpoint.shapes:
        if stored not in known and not family.may_be_left_out(stored.removeprefix(root)):
            raise CheckpointError(
                f"the checkpoint holds tensor {stored!r} that this policy does not use; a graph without it would "
                "give other "
                "actions: check config.json."
            )
    return weights
