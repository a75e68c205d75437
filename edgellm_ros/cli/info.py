"""Print what an engine directory holds: model, precision, limits, source, licence, files."""

from __future__ import annotations

import argparse
import json

from ..action.camera_slots import CameraSlot
from ..action.policy_manifest import ACTION_DIRECTORY, POLICY_FILE, PolicyManifest, read_policy_manifest
from ..engine_format import GRAPH_FILE, EngineDirectory, open_engine_directory
from ..vision.visual_directory import TILES, VisualDirectory, find_visual_directory, open_visual_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("engine_dir", metavar="ENGINE_DIR", help="engine directory")
    parser.add_argument(
        "--backend", metavar="NAME", help="load it on this backend too, and say which library runs which graph"
    )
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="with --backend (default: all physical cores)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: config and manifest")


def describe(directory: EngineDirectory) -> str:
    """A person's view."""
    config, manifest = directory.config, directory.manifest
    limits = config.limits
    position_bytes = sum(2 * 4 * heads * size for heads, size in config.kv_layers)
    total = sum(manifest.files.values())
    rows = [
        ("model", f"{config.model} ({manifest.source})"),
        ("licence", manifest.licence),
        ("precision", f"{manifest.precision}, lowering {manifest.lowering}"),
        (
            "shape",
            f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, vocabulary {config.vocab_size}, "
            f"{config.num_attention_heads} heads",
        ),
        (
            "limits",
            f"batch {limits.max_batch_size}, prompt {limits.max_input_len} tokens, "
            f"prompt and answer {limits.max_kv_cache_capacity} tokens",
        ),
        ("cache", f"{position_bytes / 1024:.0f} KiB a token as float32"),
        ("end tokens", ", ".join(map(str, config.eos_token_id)) or "none"),
        ("built by", f"edgellm_ros {manifest.builder_version}, fingerprint {manifest.fingerprint[:16]}"),
        ("files", f"{total / 1e6:.1f} MB in {directory.path}"),
    ]
    place = find_visual_directory(directory.path, None)
    if place is not None:
        rows.insert(4, ("images", _tower(open_visual_directory(place))))
    if (directory.path / ACTION_DIRECTORY / POLICY_FILE).is_file():
        rows[5:5] = _policy(read_policy_manifest(directory.path / ACTION_DIRECTORY))
    lines = [f"{name + ':':<12}{text}" for name, text in rows]
    lines += [f"{'':<12}{size / 1e6:9.1f} MB  {name}" for name, size in manifest.files.items()]
    return "\n".join(lines)


def _tower(visual: VisualDirectory) -> str:
    tower = visual.tower
    size = (
        f"tiles of {tower.image_size} pixels a side, {tower.tokens_per_tile} tokens each"
        if tower.layout == TILES
        else f"any size, a token for {tower.patch_size * tower.spatial_merge_size} pixels a side"
    )
    planes = f", {tower.deepstack_planes} deepstack planes" if tower.deepstack_planes else ""
    return f"{tower.model_type}, {visual.manifest.precision}: {size}{planes}"


def _policy(manifest: PolicyManifest) -> list[tuple[str, str]]:
    robot = f" for {manifest.embodiment}" if manifest.embodiment else ""
    return [
        (
            "policy",
            f"{manifest.family}{robot}: {manifest.horizon} actions of {manifest.step_time:.4g} s a chunk, "
            f"{manifest.denoise_steps} denoise steps, meaning {manifest.meaning.value}",
        ),
        (
            "built of",
            ", ".join(f"{name} {getattr(manifest.fingerprints, name)[:16]}" for name in ("checkpoint", "statistics")),
        ),
        ("cameras", ", ".join(map(_camera, manifest.cameras))),
        *(
            (name, ", ".join(f"{label} [{unit}]" for label, unit in zip(part.names, part.units, strict=True)) or "none")
            for name, part in (("state", manifest.state), ("actions", manifest.action))
        ),
    ]


def _camera(slot: CameraSlot) -> str:
    note = " (ignored)" if slot.ignored else "" if slot.required else " (may be missing)"
    return slot.name + note


def libraries(directory: EngineDirectory, backend: str, threads: int) -> dict[str, str]:
    """Which library runs which graph once the directory is loaded and warm, by the graph's file name.

    :raises EdgeLLMError: it does not load.
    """
    from ..action.policy_runtime import PolicyRuntime
    from ..backends.registry import graph_libraries
    from ..runtime.inference_runtime import LLMInferenceRuntime

    found: dict[str, str] = {}
    if (directory.path / ACTION_DIRECTORY / POLICY_FILE).is_file():
        with PolicyRuntime(directory.path, backend=backend, threads=threads) as policy:
            policy.warm_up()
            found |= graph_libraries(policy.backend) or {ACTION_DIRECTORY: policy.backend.name}
    if (directory.path / GRAPH_FILE).is_file():
        with LLMInferenceRuntime(directory.path, backend=backend, threads=threads) as runtime:
            runtime.warm_up(1)
            name = runtime.rank.backend.name
            plain = "ONNX Runtime" if name == "openvino" else name
            found |= {GRAPH_FILE: plain, **graph_libraries(runtime.rank.backend)}
    return found


def run(arguments: argparse.Namespace) -> int:
    """Print; 0 when the directory is sound."""
    directory = open_engine_directory(arguments.engine_dir)
    loaded = None if arguments.backend is None else libraries(directory, arguments.backend, arguments.threads)
    if arguments.json:
        content = {"config": directory.config.to_json(), "manifest": directory.manifest.to_json()}
        if loaded is not None:
            content["libraries"] = loaded
        print(json.dumps(content, ensure_ascii=False, indent=1))
    else:
        print(describe(directory))
        for name, library in (loaded or {}).items():
            print(f"{'runs on:':<12}{name}: {library}")
    return 0
