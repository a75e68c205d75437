"""Low-rank adapters as PEFT saves them: ``adapter_config.json`` and ``adapter_model.safetensors`` in a folder."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..adapter_format import AdapterFormat, AdapterStack
from ..errors import RefusalCode, RequestError
from ..json_values import finite_number, is_file, is_folder, is_there, shown, whole_number

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_LARGEST_HEADER = 100 * 2**20
_LARGEST_RANK = 1 << 16
_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_KEY = re.compile(r"(?:^|\.)(?P<module>layers\.\d+\.[\w.]+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")
# Settings that change what an adapter computes, and what they must be; those that only matter in training may be any.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "use_rslora": (False, None, True),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "megatron_config": (None,),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
}
_CHANGED_BASE = ("pissa", "olora", "corda")  # ways to begin that change the base model's own weights


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter in the form of one engine: for each of its products float32 a and b, as ``adapter_format`` has them.

    a [rank, targets * columns], b [rank, targets * rows]; scaling and the targets' factors are in b.
    """

    rank: int
    stacks: tuple[tuple[np.ndarray, np.ndarray], ...]


def bad_adapter(message: str) -> RequestError:
    """The refusal of an adapter's folder."""
    return RequestError(message, RefusalCode.BAD_PARAMETER)


def read_peft_folder(path: Path | str, form: AdapterFormat) -> AdapterWeights:
    """The adapter of a folder, for an engine of this form.

    :raises RequestError: a file is missing or damaged, a setting is not served, or a weight does not fit the engine.
    """
    if not isinstance(path, str | Path):
        raise bad_adapter(f"the folder of an adapter is {shown(path)}; want a path.")
    path = Path(path)
    config = _config(path)
    scaling, rank = _scaling(path, config), config["r"]
    if rank > form.rank:
        raise bad_adapter(
            f"{path} has rank {rank}; the engine was built for at most {form.rank}: build it with --lora-rank {rank}."
        )
    tensors = _read(path / WEIGHTS_FILE)
    if not tensors:
        raise bad_adapter(f"{path / WEIGHTS_FILE} holds no weight; save the adapter again.")
    modules: dict[str, dict[str, np.ndarray]] = {}
    for name, values in tensors.items():
        match = _KEY.search(name)
        if match is None or "vision" in name or "visual" in name:
            raise bad_adapter(f"{path} holds {name!r}, no low-rank weight of a text layer; train it without that.")
        modules.setdefault(match["module"], {})[match["side"]] = values
    stacks = tuple(_stack(path, stack, modules, rank, scaling) for stack in form.stacks)
    if modules:
        raise bad_adapter(f"{path} changes {next(iter(modules))!r}, which this engine keeps; train it without that.")
    return AdapterWeights(rank, stacks)


def _config(path: Path) -> dict[str, Any]:
    file = path / CONFIG_FILE
    if not is_folder(path):
        raise bad_adapter(f"{path} is no folder; want one with {CONFIG_FILE} and {WEIGHTS_FILE}.")
    for part in (file, path / WEIGHTS_FILE):
        if is_there(part) and not is_file(part):
            raise bad_adapter(f"{part} is no regular file; save the adapter again.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise bad_adapter(f"{file} cannot be read ({error}); save the adapter again.") from None
    if not isinstance(config, dict):
        raise bad_adapter(f"{file} holds {shown(config)}; want an object.")
    for name, allowed in _PLAIN.items():
        if config.get(name, allowed[0] if name != "peft_type" else None) not in allowed:
            raise bad_adapter(f"{file}: {name} is {shown(config.get(name))}, which is not served; want {allowed[0]!r}.")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise bad_adapter(f"{file}: init_lora_weights is {start!r}, which changes the base model; convert the adapter.")
    return config


def _scaling(path: Path, config: Mapping[str, Any]) -> float:
    try:
        rank = whole_number("r", config.get("r"), 1, _LARGEST_RANK)
        alpha = finite_number("lora_alpha", config.get("lora_alpha"))
    except ValueError as error:
        raise bad_adapter(f"{path / CONFIG_FILE}: {error}; correct it, or save the adapter again.") from None
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _stack(
    path: Path, stack: AdapterStack, modules: dict[str, dict[str, np.ndarray]], rank: int, scaling: float
) -> tuple[np.ndarray, np.ndarray]:
    """Zeros where the adapter changes nothing; takes what it uses out of ``modules``."""
    count, start = len(stack.targets), 0
    down = np.zeros((rank, count, stack.columns), np.float32)
    up = np.zeros((rank, count, stack.rows), np.float32)
    for place, target in enumerate(stack.targets):
        pair = modules.pop(target.module[target.module.index("layers.") :], {})
        if pair:
            wanted = {"A": (rank, stack.columns), "B": (target.rows, rank)}
            for side, shape in wanted.items():
                if side not in pair or pair[side].shape != shape:
                    found = list(pair[side].shape) if side in pair else "nothing"
                    raise bad_adapter(f"{path} has {found} for lora_{side} of {target.module}; want {list(shape)}.")
            down[:, place] = pair["A"]
            with np.errstate(over="ignore", invalid="ignore"):
                up[:, place, start : start + target.rows] = pair["B"].T * np.float32(scaling * target.factor)
            if not np.isfinite(up[:, place]).all():
                raise bad_adapter(
                    f"{path} has weights of {target.module} that are not finite when lora_alpha scales them."
                )
        start += target.rows
    return down.reshape(rank, -1), up.reshape(rank, -1)


def _read(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file as float32."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise bad_adapter(
            f"{path} cannot be read ({error.strerror}); want the adapter as safetensors, not as a pickled file."
        ) from None
    try:
        (length,) = struct.unpack("<Q", data[:8])
        if length > min(len(data) - 8, _LARGEST_HEADER):
            raise ValueError("its header is longer than the file")
        header = json.loads(data[8 : 8 + length])
        tensors = {
            name: _tensor(memoryview(data)[8 + length :], entry)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise bad_adapter(f"{path} is no safetensors file of floats ({error}); save the adapter again.") from None
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise bad_adapter(f"{path}: {name!r} holds numbers that are not finite; save the adapter again.")
    return tensors


def _tensor(data: memoryview, entry: Mapping[str, Any]) -> np.ndarray:
    start, stop = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    if not 0 <= start <= stop <= len(data) or min(shape, default=0) < 0:
        raise ValueError(f"a tensor of {list(shape)} from byte {start} to {stop} of {len(data)}")
    dtype = _TYPES[entry["dtype"]]
    values: np.ndarray = np.frombuffer(data[start:stop], dtype).reshape(shape)
    wide = values.astype(np.uint32) << 16 if entry["dtype"] == "BF16" else values.astype(np.float32)
    return wide.view(np.float32)
