"""Image towers give the embeddings that transformers gives, under every lowering, whatever the checkpoint's keys."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from published_configs import PARSED
from vision_engines import LIMITS, LOWERINGS, TOLERANCE, checkpoint, distance_of_images, engine, tower_outputs
from vision_inputs import FAMILIES, GRIDS

from edgellm_ros.backends import integer_probe
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.build_plan import plan_build
from edgellm_ros.builder.huggingface_checkpoint import HuggingFaceCheckpoint
from edgellm_ros.builder.random_weights import RandomCheckpoint, open_random_checkpoint, write_safetensors
from edgellm_ros.builder.vision_families import TOWERS, read_tower
from edgellm_ros.builder.vision_families.siglip import SiglipTower
from edgellm_ros.engine_format import VISUAL_DIRECTORY, open_engine_directory
from edgellm_ros.errors import BackendError, CheckpointError, EngineDirectoryError
from edgellm_ros.vision.visual_directory import find_visual_directory, open_visual_directory

FOLDER = os.environ.get("EDGELLM_HUB_CONFIGS", "")
NOT_ALL = {"InternVLChatModel"}  # towers of which some kinds are refused


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_and_planes_equal_those_of_transformers(family, lowering):
    assert distance_of_images(engine(family, lowering) / VISUAL_DIRECTORY, family) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_eight_bits_keep_the_direction_of_every_token(family):
    visual = engine(family, "onnxruntime", "int8") / VISUAL_DIRECTORY
    assert open_visual_directory(visual).manifest.precision == "int8"
    (found,), (wanted,) = (
        tower_outputs(engine(family, "onnxruntime", precision) / VISUAL_DIRECTORY, family, (0,))
        for precision in ("int8", "fp32")
    )
    for one, other in zip(found, wanted, strict=True):
        assert not np.array_equal(one, other)
        cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
        assert cosine.min() > 0.995  # of tokens of 24 numbers; the mean is what a model of real width shows
        assert cosine.mean() > 0.999


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_images_of_one_shape_share_a_call(family, lowering, monkeypatch):
    monkeypatch.setitem(GRIDS, 1, GRIDS[0])
    visual = engine(family, lowering) / VISUAL_DIRECTORY
    together = tower_outputs(visual, family, (0, 1))
    alone = [tower_outputs(visual, family, (seed,))[0] for seed in (0, 1)]
    for one, other in zip(together, alone, strict=True):
        assert np.abs(one[0] - other[0]).max() < TOLERANCE


# how transformers 4.52 and later spell what the fixtures have in the published spelling
NEWER = (
    (r"^visual\.", "model.visual."),
    (r"^model\.(?!visual|language_model|text_model|vision_model|connector)", "model.language_model."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^vision_tower\.(?=embeddings|encoder\.layers|post)", "model.vision_tower.vision_model."),
    (r"^vision_tower\.", "model.vision_tower."),
    (r"^multi_modal_projector\.", "model.multi_modal_projector."),
)


def renamed(name: str) -> str:
    for pattern, replacement in NEWER:
        if re.match(pattern, name):
            return re.sub(pattern, replacement, name, count=1)
    return name


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "gemma3", "paligemma", "internvl"])
def test_the_other_spelling_of_the_tensors_gives_the_same_tower(family, tmp_path):
    source = checkpoint(family)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    content = (source / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = {renamed(name): row for name, row in json.loads(content[8 : 8 + length]).items()}
    assert sum(name.startswith("model.") for name in header) == len(header) - 1  # all but the metadata
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    built = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    for name in ("visual/visual.onnx.data", "llm.onnx.data"):
        assert (built / name).read_bytes() == (engine(family, "onnxruntime") / name).read_bytes()


def test_planes_are_in_the_order_of_their_layers_whatever_that_of_their_mergers(tmp_path):
    source = HuggingFaceCheckpoint(checkpoint("qwen3_vl"))
    other = {
        "deepstack_merger_list.0.": "deepstack_merger_list.1.",
        "deepstack_merger_list.1.": "deepstack_merger_list.0.",
    }
    names = {
        re.sub(r"deepstack_merger_list\.\d\.", lambda found: other[found[0]], name): name for name in source.shapes
    }
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint("qwen3_vl"), folder)
    config = {**source.config, "vision_config": {**source.config["vision_config"], "deepstack_visual_indexes": [2, 0]}}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(
        folder / "model.safetensors",
        {name: source.shapes[old] for name, old in names.items()},
        lambda name, start, stop: source.read_rows(names[name], start, stop),
    )
    built = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    assert distance_of_images(built / VISUAL_DIRECTORY, "qwen3_vl") < TOLERANCE


AUTHORS = (
    (r"^vision_tower\.", "vision_model."),
    (r"\.embeddings\.cls_token$", ".embeddings.class_embedding"),
    (r"\.patch_embeddings\.projection\.", ".patch_embedding."),
    (r"\.position_embeddings$", ".position_embedding"),
    (r"\.encoder\.layer\.", ".encoder.layers."),
    (r"\.attention\.q_proj\.", ".attn.qkv."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_", ".ls"),
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."),
)


def test_internvl_as_its_authors_publish_it_gives_the_same_tower(tmp_path):
    source = HuggingFaceCheckpoint(checkpoint("internvl"))
    tensors = {}
    for name, shape in source.shapes.items():
        values = source.read_rows(name, 0, shape[0])
        if "vision" in name and (".k_proj." in name or ".v_proj." in name):
            continue
        if "vision" in name and ".q_proj." in name:
            parts = [name.replace("q_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
            values = np.concatenate([source.read_rows(part, 0, shape[0]) for part in parts])
        for pattern, replacement in AUTHORS:
            name = re.sub(pattern, replacement, name)
        tensors[name] = values
    config = dict(source.config)
    text, vision = config.pop("text_config"), config.pop("vision_config")
    vision |= {"model_type": "intern_vit_6b", "image_size": 24, "patch_size": 4, "qkv_bias": vision["attention_bias"]}
    config |= {"architectures": ["InternVLChatModel"], "llm_config": text, "vision_config": vision, "ps_version": "v2"}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((checkpoint("internvl") / name).read_bytes())
    write_safetensors(
        folder / "model.safetensors",
        {name: values.shape for name, values in tensors.items()},
        lambda name, start, stop: tensors[name][start:stop],
    )
    built = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    assert distance_of_images(built / VISUAL_DIRECTORY, "internvl") < TOLERANCE


def test_a_tower_is_part_of_the_engine_directory_and_of_what_is_checked(tmp_path):
    built = build_engine(checkpoint("smolvlm"), tmp_path / "engine", limits=LIMITS)
    manifest = open_engine_directory(built).manifest
    assert {"visual/visual.onnx", "visual/visual.onnx.data", "visual/config.json"} <= set(manifest.files)
    assert not manifest.source.endswith("its text part")
    assert find_visual_directory(built, None) == find_visual_directory(tmp_path / "x", built) == built / "visual"
    directory = open_visual_directory(built / "visual")
    assert directory.tower.layout == "tiles" and directory.tower.tokens_per_tile == 9
    assert directory.config["image_token_id"] == 262 and directory.config["scale_factor"] == 3
    with (built / "visual" / "visual.onnx.data").open("ab") as file:
        file.write(b"x")
    with pytest.raises(EngineDirectoryError, match=r"visual\.onnx\.data"):
        open_engine_directory(built)
    with pytest.raises(EngineDirectoryError, match=r"visual\.onnx\.data"):
        open_visual_directory(built / "visual")


def test_the_text_alone_has_no_tower(tmp_path):
    built = build_engine(checkpoint("qwen3_vl"), tmp_path / "engine", limits=LIMITS, text_only=True)
    assert find_visual_directory(built, None) is None
    assert open_engine_directory(built).manifest.source.endswith("its text part")
    with pytest.raises(EngineDirectoryError, match="has no directory 'visual'"):
        find_visual_directory(built, built)


@pytest.mark.parametrize("change", ["missing", "of another shape", "unknown"])
def test_vision_tensors_that_do_not_fit_the_configuration_are_refused(change, tmp_path):
    random = RandomCheckpoint(json.loads((checkpoint("internvl") / "config.json").read_text()), 3)
    name = "visual.tower.encoder.layer.1.mlp.fc1.weight"
    shapes = dict(random.shapes)
    if change == "missing":
        del shapes[name]
    else:
        shapes[name if change != "unknown" else "visual.tower.encoder.layer.9.mlp.fc1.weight"] = (3, 5)
    random.shapes = shapes
    with pytest.raises(CheckpointError, match=r"mlp\.fc1\.weight"):
        plan_build(random, precision="fp32", limits=LIMITS, lowering="onnxruntime")


@pytest.mark.parametrize(("side", "moved"), [(26, 0), (27, 0), (32, 0), (31, 4)])
def test_positions_are_those_that_idefics3_finds_from_fractions(side, moved):
    tower = read_tower(json.loads((checkpoint("smolvlm") / "config.json").read_text()))
    assert isinstance(tower, SiglipTower)
    rows = replace(tower, image_size=side * tower.patch_size, block=1).positions().reshape(side, side) // side
    assert (rows[:, 0] != np.arange(side)).sum() == moved  # the published sides round to themselves


REFUSED = {
    "a vision model that is not InternViT": ("internvl_chat", {"model_type": "uniflow"}, "of the type 'uniflow'"),
    "heads that do not divide": (
        "qwen2_vl",
        {"num_heads": 7},
        "vision hidden_size 24 is not a multiple of num_heads 7",
    ),
    "planes from layers that are not there": ("qwen3_vl", {"deepstack_visual_indexes": [9]}, "want numbers of layers"),
    "a layer that gives two planes": ("qwen3_vl", {"deepstack_visual_indexes": [0, 0]}, "want each layer once"),
    "a grid that is no square": ("qwen3_vl", {"num_position_embeddings": 24}, "want a square number"),
    "tokens as wide as no text": ("qwen2_5_vl", {"out_hidden_size": 16}, "want 32, the text model's width"),
    "an unknown activation": ("gemma3", {"hidden_act": "relu6"}, "hidden_act is 'relu6'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_tower_that_is_not_built_is_refused_with_a_reason(case):
    family, change, sentence = REFUSED[case]
    config = dict(PARSED["InternVL3 2B, its text part"]["config"]) if family == "internvl_chat" else dict(
        json.loads((checkpoint(family) / "config.json").read_text())
    )  # fmt: skip
    config["vision_config"] = {**config.get("vision_config", {}), **change}
    with pytest.raises(CheckpointError, match=sentence):
        read_tower(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_of_a_whole_build_with_their_tower(family, tmp_path):
    folder = tmp_path / "shape"
    folder.mkdir()
    (folder / "config.json").write_bytes((checkpoint(family) / "config.json").read_bytes())
    (folder / "preprocessor_config.json").write_text("{}")
    built = build_engine(folder, tmp_path / "engine", limits=LIMITS, random_seed=1)
    assert (built / "visual" / "preprocessor_config.json").read_text() == "{}"
    assert np.isfinite(tower_outputs(built / "visual", family, (0,))[0][0]).all()


@pytest.mark.skipif(not FOLDER, reason="EDGELLM_HUB_CONFIGS names no folder of published configurations")
def test_every_published_vision_language_configuration_gives_a_plan_or_a_reason():
    planned, refused = [], {}
    for path in sorted(Path(FOLDER).glob("*/config*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        names = content.get("architectures") or []
        if not isinstance(content.get("vision_config"), dict) or "quantization_config" in content:
            continue
        try:
            plan = plan_build(open_random_checkpoint(path), precision="int8", limits=None, lowering="onnxruntime")
            assert plan.vision is not None and plan.vision.config["tower"]["hidden_size"] > 0
            planned.append(path.parent.name)
        except CheckpointError as error:
            refused[path.parent.name] = str(error)
            assert any(name in str(error) for name in names), error
    print(*planned, sep="\n")
    assert len(planned) > 8
    for name, sentence in refused.items():
        print(f"{name}: refused, {sentence}")
        content = json.loads(next(Path(FOLDER).glob(f"{name}/config*.json")).read_text())
        assert not set(content["architectures"]) & (set(TOWERS) - NOT_ALL)


def test_a_cpu_without_exact_eight_bit_products_refuses_the_tower(monkeypatch):
    visual = engine("smolvlm", "onnxruntime", "int8") / VISUAL_DIRECTORY
    assert integer_probe.product_error() == 0  # else the tests of eight bits would not have come this far
    monkeypatch.setattr(integer_probe, "product_error", lambda: 1024096.0)
    with pytest.raises(BackendError, match="which has no VNNI; build the image tower with '--vision-precision fp32'"):
        tower_outputs(visual, "smolvlm", (0,))
    tower_outputs(engine("smolvlm", "onnxruntime") / VISUAL_DIRECTORY, "smolvlm", (0,))
