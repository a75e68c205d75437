"""What images cost on the CPU: towers of eight bits, rows that are known already, and the choice of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..harness import Case, EngineSpec, Metric
from ..vision_shapes import QWEN25_VL, SMOLVLM, VisionShape
from ..workspace import Workspace

# of the shapes below; their text parts are cut to a layer, since towers are run alone
TOWER = SMOLVLM.with_layers(text=1)
LONG_TOWER = QWEN25_VL.with_layers(text=1, vision=8)  # of 32, one of whose four sees the whole image
FRAME = {"SmolVLM-256M": SMOLVLM.picture, "Qwen2.5-VL-3B": (448, 616)}  # 1,024 and 1,408 patches
IMAGE_TOKENS, TEXT_TOKENS = 2000, 48
FEW, MORE, ALL = 1, 3, 36  # layers of Qwen2.5-VL-3B's text part


def _tower(workspace: Workspace, shape: VisionShape, precision: str, **options: object) -> EngineSpec:
    directory = workspace.random_engine(shape, precision)
    values = {"engine_directory": str(directory), "size": FRAME[shape.name], **options}
    return EngineSpec(f"edgellm tower {precision}", "benchmarks.ours_vision:VisionTower", values)


def _tower_case(name: str, shape: VisionShape, *peers: Callable[[Workspace], object]) -> Callable[[Workspace], Case]:
    def case(workspace: Workspace) -> Case:
        whole = _tower(workspace, shape, "fp32")
        return Case(
            name,
            _tower(workspace, shape, "int8", reference=whole.options["engine_directory"]),
            (
                Metric("tower_time", "ms", "<= 0.5 x fp32"),
                Metric("smallest_cosine", "cosine", ">= 0.999"),
                Metric("mean_cosine", "cosine"),
            ),
            "tower",
            {},
            (whole, *(peer(workspace) for peer in peers)),  # type: ignore[arg-type]
        )

    return case


def encoder_cache(workspace: Workspace) -> Case:
    spec = _tower(workspace, TOWER, "int8")
    return Case(
        "encoder_cache_smolvlm",
        replace(spec, program="benchmarks.ours_vision:EncoderCache"),
        (Metric("hit_share", "% of a cold run", "< 2"), Metric("cold_time", "ms"), Metric("hit_time", "ms")),
        "hit",
    )


def pruner(workspace: Workspace) -> Case:
    directories = [
        str(workspace.random_engine(QWEN25_VL.with_layers(text=count), "int8", text_only=True)) for count in (FEW, MORE)
    ]
    return Case(
        "pruner_qwen2_5_vl_3b",
        EngineSpec(
            "edgellm pruner",
            "benchmarks.ours_vision:Pruner",
            {"engine_directories": directories, "layers": (FEW, MORE, ALL)},
            timeout=600,
        ),
        (
            Metric("pruner_share", "% of prefill", "< 3"),
            Metric("pruner_time", "ms"),
            Metric("prefill_time", "s, of 36 layers, from 1 and 3"),
            Metric("layer_time", "ms"),
        ),
        "prune",
        {"tokens": IMAGE_TOKENS, "text": TEXT_TOKENS},
    )


CASES: dict[str, Callable[[Workspace], Case]] = {
    "tower_int8_smolvlm": _tower_case(
        "tower_int8_smolvlm",
        TOWER,
        lambda workspace: workspace.torch_tower(SMOLVLM, "fp32"),
        lambda workspace: workspace.torch_tower(SMOLVLM, "bf16"),
    ),
    "tower_int8_qwen2_5_vl": _tower_case("tower_int8_qwen2_5_vl", LONG_TOWER),
    "encoder_cache_smolvlm": encoder_cache,
    "pruner_qwen2_5_vl_3b": pruner,
}
