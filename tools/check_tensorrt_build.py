"""Builds graphs with TensorRT-RTX: every family, image tower and policy at tiny size, SmolLM2 at its real one.

Usage: python tools/check_tensorrt_build.py [NAME...]

No GPU is needed: the importer parses each graph and the builder compiles it; nothing is run. Weights are random. Exit
status 1 when any graph is refused.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test" / "builder")]

from tiny_families import TINY_FAMILIES  # noqa: E402

from edgellm_ros.builder.build import build_engine  # noqa: E402
from edgellm_ros.builder.plan_graphs import PlanGraph, plan_graphs  # noqa: E402
from edgellm_ros.builder.random_weights import write_random_checkpoint  # noqa: E402
from edgellm_ros.builder.tensorrt_network import allow_decomposition  # noqa: E402
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory  # noqa: E402

PROVIDER = "onnxruntime_ep_nv_tensorrt_rtx"  # the package whose folder holds the libraries
LIBRARIES = ("libcudart.so.*", "libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*")  # in the order they load
LIMITS = BuilderLimits(max_batch_size=4, max_input_len=64, max_kv_cache_capacity=128)
WHOLE_BLOCKS = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}  # columns are cut into blocks of 32
LEVELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # so that a tower takes pixels as they come
POLICIES = ROOT / "test" / "action" / "reference"
ROBOT = "libero_sim"  # of those that GR00T's tiny one knows
TOWERS = ROOT / "test" / "reference" / "vision_families"
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


Case = tuple[Mapping[str, Any] | Path, str, str, BuilderLimits | None]


def cases() -> dict[str, Case]:
    """(configuration or folder of a policy, lowering, precision, limits) by name."""
    found: dict[str, Case] = {}
    for family, config in TINY_FAMILIES.items():
        found[f"{family} fp32"] = (config, "tensorrt", "fp32", LIMITS)
        for precision in ("fp16", "bf16"):
            found[f"{family} {precision}"] = ({**config, "head_dim": 64}, "tensorrt", precision, LIMITS)
    for family in ("llama", "gemma3"):
        for precision in ("int8", "int4"):
            config = {**TINY_FAMILIES[family], **WHOLE_BLOCKS}
            found[f"{family} {precision}"] = (config, "tensorrt", precision, LIMITS)
    for family in ("llama", "gemma2", "gemma3"):
        for precision in ("fp32", "fp16", "bf16"):
            found[f"{family} legacy {precision}"] = (TINY_FAMILIES[family], "tensorrt_legacy", precision, LIMITS)
    for precision in ("fp32", "fp16", "bf16", "int4"):
        found[f"SmolLM2 135M {precision}"] = (SMOLLM2, "tensorrt", precision, BuilderLimits(1, 512, 2048))
    for path in sorted(TOWERS.glob("*/config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        for lowering, label in (("tensorrt", "image"), ("tensorrt_legacy", "image legacy")):
            for precision in ("fp32", "fp16", "bf16"):
                found[f"{path.parent.name} {label} {precision}"] = (config, lowering, precision, LIMITS)
    for policy in ("smolvla", "pi0", "pi05", "groot"):
        for precision in ("fp32", "fp16", "bf16"):
            found[f"{policy} policy {precision}"] = (POLICIES / policy, "tensorrt", precision, None)
        found[f"{policy} policy legacy fp16"] = (POLICIES / policy, "tensorrt_legacy", "fp16", None)
    return found


def load_tensorrt() -> Any:
    """The bindings; their libraries are loaded first, because no loader looks into the provider's folder."""
    spec = importlib.util.find_spec(PROVIDER)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{PROVIDER} is not installed; run 'make test-tensorrt-build', which installs it.")
    folder = Path(next(iter(spec.submodule_search_locations)))
    for pattern in LIBRARIES:
        for library in sorted(folder.glob(pattern)):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    import tensorrt_rtx_bindings

    return tensorrt_rtx_bindings


class Importer:
    """Parses and builds one graph after another."""

    def __init__(self) -> None:
        self._trt = load_tensorrt()
        self.version = str(self._trt.__version__)
        self._logger = self._trt.Logger(self._trt.Logger.ERROR)

    def build(self, target: PlanGraph) -> int:
        """Bytes of the engine. :raises ValueError: refused; the sentence is the library's."""
        trt = self._trt
        builder = trt.Builder(self._logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self._logger)
        if not parser.parse_from_file(str(target.graph)):
            raise ValueError("; ".join(str(parser.get_error(index)) for index in range(parser.num_errors)))
        allow_decomposition(trt, network)
        settings = builder.create_builder_config()
        inputs = [network.get_input(index) for index in range(network.num_inputs)]
        for ranges in target.profiles:
            profile = builder.create_optimization_profile()
            for tensor in inputs:
                shape = tuple(tensor.shape)
                if -1 in shape:
                    profile.set_shape(tensor.name, *ranges(tensor.name, shape))
            settings.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, settings)
        if plan is None:
            raise ValueError("the network was parsed but not built; the log above says why")
        return int(plan.nbytes)


def _checkpoint(folder: Path, source: Mapping[str, Any] | Path) -> tuple[Path, dict[str, Any]]:
    """What an engine is built of, and how."""
    if isinstance(source, Path):
        settings = folder / "robot.yaml"
        settings.write_text(f"embodiment: {ROBOT}\n", encoding="utf-8")
        return source, {"policy_settings": settings if source.name == "groot" else None}
    if "vision_config" in source:
        (folder / "config.json").write_text(json.dumps(source), encoding="utf-8")
        (folder / "preprocessor_config.json").write_text(json.dumps(LEVELS), encoding="utf-8")
        return folder, {"random_seed": 0}
    return write_random_checkpoint(folder / "checkpoint", source), {}


def check(
    importer: Importer,
    name: str,
    source: Mapping[str, Any] | Path,
    lowering: str,
    precision: str,
    limits: BuilderLimits | None,
) -> bool:
    """Write the graphs, build each, and say how it went."""
    with tempfile.TemporaryDirectory(prefix="edgellm-tensorrt-") as folder:
        started = time.monotonic()
        checkpoint, options = _checkpoint(Path(folder), source)
        engine = build_engine(
            checkpoint,
            Path(folder) / "engine",
            precision=precision,
            limits=limits,
            lowering=lowering,
            calibrate=False,  # random weights, and no engine library to run them
            **options,
        )
        written = time.monotonic()
        try:
            targets = plan_graphs(open_engine_directory(engine))
            built = targets[1:] if "random_seed" in options else targets  # the text model is another case
            size = sum(importer.build(target) for target in built)
        except ValueError as error:
            print(f"  {name}: REFUSED: {error}", flush=True)
            return False
        print(
            f"  {name}: {len(built)} written in {written - started:.1f} s, built in "
            f"{time.monotonic() - written:.1f} s, {size / 1e6:.1f} MB",
            flush=True,
        )
        return True


def main() -> int:
    """Check all, or those whose names are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(cases())}")
    names = parser.parse_args().names or list(cases())
    unknown = [name for name in names if name not in cases()]
    if unknown:
        parser.error(f"{unknown[0]!r} is unknown; want one of: {', '.join(cases())}")
    importer = Importer()
    print(f"TensorRT-RTX {importer.version} builds {len(names)} graphs", flush=True)
    results = [check(importer, name, *cases()[name]) for name in names]
    print(f"{sum(results)} of {len(results)} built", flush=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
