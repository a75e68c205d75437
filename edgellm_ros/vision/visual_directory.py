"""The directory ``visual``: what the builder wrote about an image tower, checked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..engine_format import CONFIG_FILE, VISUAL_DIRECTORY, VISUAL_GRAPH_FILE
from ..engine_manifest import MANIFEST_FILE, Manifest
from ..errors import EngineDirectoryError
from ..file_sample import check_content
from ..json_values import read_json, shown

TILES, PATCHES = "tiles", "patches"  # layouts: squares of one size, or patches of any grid
MOST_POSITIONS = 4096  # of a call with several images: more is no faster, and its activations take memory
FRAME_GROUPS = (16, 4, 1)  # frames of patches that share a call; few numbers, since a plan is compiled for each


@dataclass(frozen=True)
class TowerSettings:
    """What a runtime must know of a tower; ``hidden_size`` is the width of its tokens. 0 where a kind has no such."""

    model_type: str
    layout: str
    hidden_size: int
    num_channels: int
    patch_size: int
    image_size: int = 0
    tokens_per_tile: int = 0
    temporal_patch_size: int = 0
    spatial_merge_size: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    window_patches: int = 0
    position_grid: int = 0
    deepstack_planes: int = 0
    pixels: str = ""  # "levels" where pixel values are 0 to 255 and the tower scales them
    blocks: str = ""  # what sees itself in both directions: each of the "images", the whole "prompt", or nothing

    def __post_init__(self) -> None:
        if self.layout not in (TILES, PATCHES):
            raise ValueError(f"layout is {shown(self.layout)}; want {TILES} or {PATCHES}")
        needed = ("image_size", "tokens_per_tile") if self.layout == TILES else (
            "temporal_patch_size", "spatial_merge_size", "head_dim",
        )  # fmt: skip
        for name in ("hidden_size", "num_channels", "patch_size", *needed):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} is {shown(getattr(self, name))}; want a whole number above 0")

    @property
    def tile_positions(self) -> int:
        """Patches of a tile."""
        return (self.image_size // self.patch_size) ** 2

    def images_at_once(self, positions: int) -> int:
        """How many tiles, or frames of ``positions`` patches, share a call."""
        if self.layout == TILES:
            return max(1, MOST_POSITIONS // positions)
        return next((count for count in FRAME_GROUPS if count * positions <= MOST_POSITIONS), 1)


@dataclass(frozen=True)
class VisualDirectory:
    """A directory that passed every check which needs no engine library; ``config`` is its ``config.json``."""

    path: Path
    config: dict[str, Any]
    tower: TowerSettings
    manifest: Manifest

    @property
    def graph(self) -> Path:
        """The tower's graph."""
        return self.path / VISUAL_GRAPH_FILE


def find_visual_directory(engine_dir: Path, multimodal_engine_dir: Path | None) -> Path | None:
    """``visual`` of the multimodal engine directory where one is given, else of the engine directory; None: no tower.

    :raises EngineDirectoryError: the one that is given has none.
    """
    if multimodal_engine_dir is None:
        own = engine_dir / VISUAL_DIRECTORY
        return own if own.is_dir() else None
    found = multimodal_engine_dir / VISUAL_DIRECTORY
    if found.is_dir():
        return found
    if (multimodal_engine_dir / VISUAL_GRAPH_FILE).is_file():
        return multimodal_engine_dir
    raise EngineDirectoryError(
        f"{multimodal_engine_dir} has no directory {VISUAL_DIRECTORY!r}; want what 'edgellm build' wrote of a "
        "vision-language model."
    )


def open_visual_directory(path: Path) -> VisualDirectory:
    """Read and check it: version, keys, and that every listed file is there at its full size.

    :raises EngineDirectoryError: one sentence with the file, what was found and what was wanted.
    """
    manifest = Manifest.from_json(read_json(path / MANIFEST_FILE))
    for name, size in manifest.files.items():
        file = path / Path(name).name
        if not file.is_file():
            raise EngineDirectoryError(f"{file} is missing; build the engine directory again.")
        check_content(file, size, manifest.samples.get(name))
    config = read_json(path / CONFIG_FILE)
    content = config.get("tower")
    known = {field.name for field in fields(TowerSettings)}
    try:
        if not isinstance(content, dict):
            raise ValueError(f"tower is {shown(content)}; want an object")
        tower = TowerSettings(**{name: value for name, value in content.items() if name in known})
    except (TypeError, ValueError) as error:
        raise EngineDirectoryError(f"{path / CONFIG_FILE}: {error}; build the engine directory again.") from None
    return VisualDirectory(path, config, tower, manifest)
