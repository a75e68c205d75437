"""Whether an engine directory fits the GPU's free memory, asked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from ...engine_format import (
    ACTION_DIRECTORY,
    EMBEDDING_FILE,
    GRAPH_FILE,
    PLAN_FILE,
    POLICY_FILE,
    VISUAL_DIRECTORY,
    VISUAL_GRAPH_FILE,
    EngineDirectory,
    open_engine_directory,
    read_json,
)
from ...engine_manifest import MANIFEST_FILE
from ...errors import BackendError
from ..base import DataType
from .device import Device
from .plan_file import plan_of

WORKING_BYTES = 256 << 20  # context, kernels, activations of a chunk, and logits


def needed_bytes(directory: EngineDirectory, library: str) -> dict[str, int]:
    """Device memory by use: weights, embeddings, caches and the rest; of a policy, what it acts with.

    A policy that reasons acts with its language model too, and with a copy of its cache.
    """
    files = directory.manifest.files
    if (directory.path / ACTION_DIRECTORY).is_dir():
        graphs = [name for name in files if "/" in name and name.endswith(".onnx")]
        parts = sum(graph_bytes(directory.path / name, library) for name in graphs)
        if read_json(directory.path / ACTION_DIRECTORY / POLICY_FILE).get("driving") is None:
            return {"weights": parts, "embeddings": files.get(EMBEDDING_FILE, 0), "working": WORKING_BYTES}
        needed = _language_bytes(directory, library)
        return {**needed, "weights": needed["weights"] + parts, "caches": 2 * needed["caches"]}
    images = graph_bytes(directory.path / VISUAL_DIRECTORY / VISUAL_GRAPH_FILE, library)
    return {**_language_bytes(directory, library), **({"images": images} if images else {})}


def _language_bytes(directory: EngineDirectory, library: str) -> dict[str, int]:
    files = directory.manifest.files
    weights = graph_bytes(directory.path / GRAPH_FILE, library)
    planned = library == "tensorrt" and (directory.path / PLAN_FILE).is_file()
    if directory.config.extra.get("tie_word_embeddings") and not planned:
        weights += files.get(EMBEDDING_FILE, 0)  # the head reads the same file, into memory of its own
    config = directory.config
    limits = config.limits
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    item = DataType(names.get(config.kv_cache_dtype, config.kv_cache_dtype)).numpy.itemsize
    width = sum(2 * heads * size for heads, size in config.kv_layers) * item
    return {
        "weights": weights,
        "embeddings": files.get(EMBEDDING_FILE, 0),
        "caches": width * limits.max_batch_size * limits.max_kv_cache_capacity,
        "working": WORKING_BYTES,
    }


def graph_bytes(graph: Path, library: str) -> int:
    """Bytes of the weights of a graph: its plan for TensorRT, where there is one, else the file and its data."""
    plan = plan_of(graph)
    files = [plan] if library == "tensorrt" and plan.is_file() else [graph, graph.with_name(f"{graph.name}.data")]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_memory(device: Device, path: Path, library: str) -> None:
    """Refuse what cannot fit, of an engine directory or a graph; a folder without a manifest is not checked.

    :raises BackendError: it does not fit; the sentence says how much is missing.
    """
    directory = path if path.is_dir() else path.parent
    if directory is path or path.name in (GRAPH_FILE, PLAN_FILE):
        if not (directory / MANIFEST_FILE).is_file():
            return
        needed = needed_bytes(open_engine_directory(directory), library)
    else:
        directory, needed = path, {"weights": graph_bytes(path, library)}
    wanted = sum(needed.values())
    free, total = device.memory()
    if wanted > free:
        parts = ", ".join(f"{name} {_megabytes(size)}" for name, size in needed.items())
        raise BackendError(
            f"out of memory: {directory} needs {_megabytes(wanted)} on the GPU ({parts}); {_megabytes(free)} of "
            f"{_megabytes(total)} are free, {_megabytes(wanted - free)} too little: close other programs, or build it "
            "with a smaller batch, cache or precision."
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
