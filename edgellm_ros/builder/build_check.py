"""What a build would make, where, and how much disk and memory that takes; nothing is read but headers, or written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..action.policy_manifest import ACTION_DIRECTORY
from ..engine_format import VISUAL_DIRECTORY
from .build import open_source
from .build_plan import BuildPlan, plan_build
from .elements import stored_dtype
from .engine_directory import check_place
from .onnx_writer import check_packages
from .policy_settings import read_policy_settings, settings_file

BUILD_BYTES = 100 << 20  # of a process that builds without a calibration, whatever the model: 92 MB were measured


@dataclass(frozen=True)
class BuildCheck:
    """A build that can be made, as far as is known before a weight is read. Sizes are bytes.

    ``passing`` are on disk while the build runs, beside ``files``; ``caches`` are what the limits take in memory, and
    ``building`` is about the most memory that the build takes itself.
    """

    place: Path
    replaces: bool
    title: str
    limits: tuple[int, int]  # sequences, positions of each
    files: Mapping[str, int]
    passing: int
    caches: int
    building: int

    @property
    def total(self) -> int:
        """Bytes of the directory."""
        return sum(self.files.values())

    def lines(self) -> list[str]:
        """For a person to read."""
        rows, positions = self.limits
        does = "would replace what is there" if self.replaces else "would be made"
        largest = sorted(self.files.items(), key=lambda item: -item[1])[:4]
        return [
            f"{self.place}: {self.title} {does}; nothing was written",
            f"  on disk     {_megabytes(self.total)}: "
            + ", ".join(f"{name} {_megabytes(size)}" for name, size in largest),
            f"  to run it   {_megabytes(self.total)} of weights, mapped from disk, and caches of up to "
            f"{_megabytes(self.caches)} for {rows} x {positions} positions",
            f"  to build it about {_megabytes(self.building)} of memory and "
            f"{_megabytes(self.total + self.passing)} of disk",
        ]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e6:.2f} MB"


def _files(plan: BuildPlan) -> dict[str, int]:
    files = dict(plan.sizes)
    for folder, part in ((VISUAL_DIRECTORY, plan.vision), (ACTION_DIRECTORY, plan.policy)):
        if part is not None:
            files |= {f"{folder}/{name}": size for name, size in part.sizes.items()}
    return files


def check_build(
    source: Path | str,
    output: Path | str,
    *,
    random_seed: int | None = None,
    calibrate: bool = True,
    policy_settings: Path | None = None,
    policy_contract: str | None = None,
    vision_precision: str | None = None,
    **settings: Any,
) -> BuildCheck:
    """What ``build_engine`` would do with these arguments.

    :raises CheckpointError: the checkpoint or a setting is refused.
    :raises EngineDirectoryError: ``output`` could not be written.
    :raises MissingPackageError: the extra [build] is not installed.
    """
    check_packages()
    place = Path(output).absolute()
    with closing(open_source(source, random_seed)) as checkpoint:
        plan = plan_build(
            checkpoint,
            calibrate=calibrate and random_seed is None,
            policy_settings=read_policy_settings(settings_file(source, policy_settings), policy_contract),
            vision_precision_name=vision_precision,
            **settings,
        )
    files, config = _files(plan), plan.config
    check_place(place, sum(files.values()) + plan.passing_bytes)
    width = sum(2 * heads * size for heads, size in config.kv_layers) * stored_dtype(config.kv_cache_dtype).itemsize
    limits = config.limits.max_batch_size, config.limits.max_kv_cache_capacity
    return BuildCheck(
        place=place,
        replaces=place.exists() and any(place.iterdir()),
        title=f"an engine directory of {config.model}, {plan.graph.precision.name} for {plan.graph.lowering.name},",
        limits=limits,
        files=files,
        passing=plan.passing_bytes,
        caches=width * limits[0] * limits[1],
        building=BUILD_BYTES + (plan.calibration.memory if plan.calibration else 0),
    )
