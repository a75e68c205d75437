"""openpi's files: how a folder of them is told, and the statistics that lie beside its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..json_values import shown
from .huggingface_checkpoint import CONFIG, SINGLE_FILE, read_json_object

STATISTICS_FILE, ASSETS = "norm_stats.json", "assets"
CONFIG_KEYS = ("action_dim", "action_horizon", "paligemma_variant", "action_expert_variant")
_JAX_MARKS = ("_METADATA", "manifest.ocdbt", "_sharding", "ocdbt.process_0")
_CONVERT = "convert them with openpi's examples/convert_jax_model_to_pytorch.py, and give the folder that it writes"


def is_openpi(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is one that openpi's conversion writes: it names no type of model."""
    return "action_horizon" in config and "paligemma_variant" in config and not {"type", "model_type"} & set(config)


def refuse_other_layouts(path: Path) -> None:
    """Say what is missing of a folder without configuration that comes from openpi.

    :raises CheckpointError: it holds JAX parameters, or weights of openpi's trainer, which writes no configuration.
    """
    if (path / CONFIG).exists():
        return
    for folder in (path, path / "params"):
        if any((folder / mark).exists() for mark in _JAX_MARKS):
            raise CheckpointError(
                f"{folder} holds JAX parameters (an orbax checkpoint of openpi); want {SINGLE_FILE} and {CONFIG}: "
                f"{_CONVERT}."
            )
    if (path / SINGLE_FILE).exists() and ((path / ASSETS).is_dir() or (path / STATISTICS_FILE).exists()):
        raise CheckpointError(
            f"{path} has weights and statistics of openpi and no {CONFIG}; write one with {', '.join(CONFIG_KEYS)} of "
            "the training configuration."
        )


def statistics_files(path: Path) -> dict[str, Path]:
    """Every file of statistics by its folder under ``assets``, as ``a/b``; beside the weights the folder is empty."""
    found = {"": path / STATISTICS_FILE} if (path / STATISTICS_FILE).is_file() else {}
    assets = path / ASSETS
    for file in sorted(assets.rglob(STATISTICS_FILE)):
        found[file.parent.relative_to(assets).as_posix()] = file
    return found


def choose_statistics(path: Path, asset: str) -> Path:
    """The only file of statistics, or that of ``asset``.

    :raises CheckpointError: there is none, or there are several and none is of ``asset``.
    """
    files = statistics_files(path)
    if len(files) == 1:
        return next(iter(files.values()))
    if asset in files:
        return files[asset]
    place = path / ASSETS / asset / STATISTICS_FILE
    if not files:
        raise CheckpointError(f"{path} has no statistics; put those of the checkpoint at {place}.")
    raise CheckpointError(f"{path} has the statistics of {', '.join(files)}; the contract wants those at {place}.")


def read_statistics(file: Path, feature: str, names: Sequence[str], width: int) -> list[tuple[float, ...]]:
    """The rows ``names`` (mean, std, q01, q99) of ``state`` or ``actions``, ``width`` numbers each.

    Older files have zeros behind the robot's own numbers, up to the width of the network; these are not the robot's.

    :raises CheckpointError: a row is missing or of another width; the sentence says which.
    """
    groups = read_json_object(file).get("norm_stats")
    group = groups.get(feature) if isinstance(groups, dict) else None
    if not isinstance(group, dict):
        raise CheckpointError(f"{file} has no norm_stats of {feature!r}; want openpi's statistics: fetch it again.")
    rows: dict[str, list[float]] = {}
    for name in names:
        row = group.get(name)
        if not isinstance(row, list) or not all(map(_is_number, row)):
            raise CheckpointError(
                f"{file}: {feature} has the {name} {shown(row)}; want a list of numbers: compute the statistics again."
            )
        rows[name] = row
    filled = max(place + 1 if value else 0 for row in rows.values() for place, value in enumerate(row or [0]))
    for name, row in rows.items():
        count = filled if len(row) > width else len(row)
        if count != width:
            raise CheckpointError(
                f"{file}: {feature} has {count} numbers in {name}; the contract has {width}: take the statistics that "
                "belong to the checkpoint, or name another contract."
            )
    return [tuple(float(value) for value in row[:width]) for row in rows.values()]


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)
