"""The directory ``visual`` of an engine directory: the tower's graph and weights, and what goes before it.

``config.json`` holds the tower's settings, the ids of the tokens that stand for images, and the checkpoint's own
vision configuration; the processor's files lie beside it as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..engine_format import CONFIG_FILE, VISUAL_DATA_FILE, VISUAL_GRAPH_FILE
from ..engine_manifest import MANIFEST_FILE, Manifest
from ..errors import CheckpointError
from ..file_sample import file_samples
from ..vision.processor_settings import LEVELS
from .checkpoint import Checkpoint
from .graph import Graph
from .lowerings.base import Lowering
from .onnx_writer import GraphFiles, lay_out, write_weights
from .quantize import Precision
from .quantize import precision as find_precision
from .vision_checkpoint import has_vision, vision_weights
from .vision_families import read_tower
from .vision_families.base import Tower
from .vision_families.layers import Layers
from .vision_families.levels import read_normalisation

TOKEN_KEYS = (
    "image_token_id", "image_token_index", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "boi_token_index", "eoi_token_index",
)  # fmt: skip
# keys of the whole that a processor or a runner reads
OTHER_KEYS = (
    "model_type", "architectures", "vision_config", "scale_factor", "mm_tokens_per_image", "force_image_size",
    "min_dynamic_patch", "max_dynamic_patch", "use_thumbnail", "dynamic_image_size", "downsample_ratio",
)  # fmt: skip
FLOATS = ("patch_embed", "projector.mm_input")  # matrices that stay as they are: few columns, and the first to err
DEFAULT_PRECISIONS = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int8", "int4": "int8"}
HALVES = ("fp16", "bf16")


@dataclass(frozen=True)
class VisionPrecision(Precision):
    """The precision of a tower: of eight bits where the text has fewer."""

    def stored_bits(self, weight: str) -> int:
        """Bits of a matrix by its name."""
        return 32 if self.bits < 16 and any(part in weight for part in FLOATS) else self.bits


@dataclass(frozen=True)
class VisionPlan:
    """Everything about ``visual`` that is known before a weight is read."""

    graph: Graph
    files: GraphFiles
    config: Mapping[str, Any]
    processor_files: Mapping[str, bytes]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file but the manifest."""
        return {
            VISUAL_GRAPH_FILE: len(self.files.model),
            VISUAL_DATA_FILE: self.files.data_size,
            CONFIG_FILE: len(_dump(self.config)),
            **{name: len(content) for name, content in self.processor_files.items()},
        }


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def find_vision_precision(name: str | None, text: str) -> Precision:
    """The precision of the tower where the text has that of the name ``text``.

    :raises CheckpointError: one that a tower does not have.
    """
    name = name or DEFAULT_PRECISIONS[text]
    if name not in ("fp32", *HALVES, "int8"):
        raise CheckpointError(f"vision precision is {name!r}; want fp32, fp16, bf16 or int8.")
    if name != text and (name in HALVES or text in HALVES):
        raise CheckpointError(f"vision precision is {name} and that of the text {text}; want {text} for both.")
    found = find_precision(name)
    return VisionPrecision(found.name, found.bits, found.block)


def plan_vision(
    checkpoint: Checkpoint, lowering: Lowering, precision: Precision, given: Tower | None = None, *, levels: bool = True
) -> VisionPlan | None:
    """Describe the tower ``given``, or that of the checkpoint's configuration; None where it has none.

    Reads no weights. With ``levels`` a tower takes pixels as they come where the checkpoint says how they are to be
    normalised.

    :raises CheckpointError: the tower is of a kind that is not built, or its tensors are not those of its file.
    """
    config = checkpoint.config
    if not has_vision(checkpoint.shapes):
        return None
    tower = given or read_tower(config)
    if tower is None:
        return None
    if precision.name not in lowering.precisions:
        raise CheckpointError(
            f"vision precision is {precision.name!r}; the lowering {lowering.name} has "
            f"{', '.join(lowering.precisions)}."
        )
    files = checkpoint.processor_files()
    normalisation = read_normalisation(config, files) if levels else None
    graph = Graph(lowering, precision, 0)
    tower.build(Layers(graph, vision_weights(checkpoint, tower), normalisation))
    kept = {key: config[key] for key in (*OTHER_KEYS, *TOKEN_KEYS) if config.get(key) is not None}
    pixels = {} if normalisation is None else {"pixels": LEVELS}
    settings = {**kept, "engine_role": "visual", "tower": {**tower.settings(), **pixels}}
    return VisionPlan(graph, lay_out(graph, "visual", VISUAL_DATA_FILE), settings, files)


def write_vision(
    plan: VisionPlan,
    directory: Path,
    source: tuple[str, str, str],
    write_file: Callable[[Path, bytes], None],
    step: Callable[[int], None],
) -> dict[str, int]:
    """Write the directory; ``source`` is the checkpoint's source, licence and fingerprint. Returns its files' sizes.

    :raises CheckpointError: a weight cannot be read or is not finite.
    """
    directory.mkdir()
    write_weights(plan.graph, plan.files, directory / VISUAL_DATA_FILE, step)
    write_file(directory / VISUAL_GRAPH_FILE, plan.files.model)
    write_file(directory / CONFIG_FILE, _dump(plan.config))
    for name, content in plan.processor_files.items():
        write_file(directory / name, content)
    sizes = {name: (directory / name).stat().st_size for name in plan.sizes}
    manifest = Manifest(
        lowering=plan.graph.lowering.name,
        precision=plan.graph.precision.name,
        builder_version=__version__,
        source=source[0],
        licence=source[1],
        fingerprint=source[2],
        files=sizes,
        samples=file_samples(directory, sizes),
    )
    write_file(directory / MANIFEST_FILE, _dump(manifest.to_json()))
    return {**sizes, MANIFEST_FILE: (directory / MANIFEST_FILE).stat().st_size}
