"""Published policies: their own configuration files parse into manifests, or are refused for a reason by name.

``fixtures/published_policies.json`` holds the files of each as they are on the hub, without what training alone reads.
Where only a part of a checkpoint is public, what is missing stands in here with the sizes that the part says.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.gpu.policy_shapes import POLICY_SHAPES
from edgellm_ros.action.normalization import NormalizationKind
from edgellm_ros.action.policy_manifest import Handoff, PolicyManifest, StateInput
from edgellm_ros.action.solver import FlowDirection
from edgellm_ros.builder.action_families import find_family
from edgellm_ros.builder.checkpoint import open_checkpoint
from edgellm_ros.builder.families import read_config
from edgellm_ros.builder.lowerings import lowering as find_lowering
from edgellm_ros.builder.policy_build import plan_policy
from edgellm_ros.builder.policy_checkpoint import PolicyCheckpoint
from edgellm_ros.builder.policy_settings import PolicySettings
from edgellm_ros.builder.quantize import precision as find_precision
from edgellm_ros.errors import CheckpointError

FILES = json.loads((Path(__file__).parent / "fixtures" / "published_policies.json").read_text())
TINY_BACKBONE = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 90,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "vocab_size": 100, "max_position_embeddings": 512, "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
    },
    "vision_config": {
        "model_type": "qwen3_vl", "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 128,
        "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1],
    },
}  # fmt: skip


def folder_of(name, root, *, statistics=True):
    """The policy's files; with the ``statistics`` that a fine-tune would have, where the published ones have none."""
    folder = root / "policy"
    (folder / "vlm").mkdir(parents=True)
    files = json.loads(json.dumps(FILES[name]))
    weights = {"model.nothing": np.zeros(1, np.float32)}
    config = files["config.json"]
    for part, group in (("observation.state", "input_features"), ("action", "output_features")):
        shape = config.get(group, {}).get(part, {}).get("shape")
        if shape is None or not statistics:
            continue
        if "policy_preprocessor.json" not in files:
            owner = "unnormalize_outputs" if part == "action" else "normalize_inputs"
            for row in ("mean", "std"):
                weights[f"{owner}.buffer_{part.replace('.', '_')}.{row}"] = np.ones(shape, np.float32)
            continue
        for pipeline in ("policy_preprocessor.json", "policy_postprocessor.json"):
            for step in files[pipeline]["steps"]:
                if step["registry_name"] in ("normalizer_processor", "unnormalizer_processor"):
                    step["state_file"] = "statistics.safetensors"
        rows = {f"{feature}.{row}": np.full(32, number, np.float32) for feature in ("observation.state", "action")
                for row, number in (("mean", 0), ("std", 1), ("q01", 0), ("q99", 1))}  # fmt: skip
        save_file(rows, folder / "statistics.safetensors")
    if name == "nvidia/GR00T-N1.7":
        (folder / "vlm" / "config.json").write_text(json.dumps(TINY_BACKBONE))
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    save_file(weights, folder / "model.safetensors")
    return folder


class Shapes(PolicyCheckpoint):
    """The files with the tensors that they would have, of which the builder asks the shapes alone."""

    def __init__(self, folder):
        super().__init__(folder)
        expert = "model.paligemma_with_expert.gemma_expert.model.layers.0.mlp.gate_proj.weight"
        marker = "model.time_mlp_in.weight" if self.config.get("type") == "pi05" else "model.state_proj.weight"
        if str(self.config.get("type")).startswith("pi0"):
            self.shapes = {**self.shapes, marker: (1024, 32), expert: (4096, 1024)}


def manifest_of(folder) -> PolicyManifest:
    checkpoint, settings = Shapes(folder), PolicySettings()
    family = find_family(checkpoint.kind)
    return family.manifest(checkpoint, family.parse(checkpoint, settings), settings)


@pytest.mark.parametrize(
    ("name", "cameras", "state", "action", "kind"),
    [
        ("lerobot/smolvla_base", 3, 6, 7, NormalizationKind.MEAN_STD),
        ("lerobot/smolvla_libero", 3, 6, 7, NormalizationKind.MEAN_STD),
        ("lerobot/pi0_base", 3, 32, 32, NormalizationKind.MEAN_STD),
        ("lerobot/pi05_base", 3, 32, 32, NormalizationKind.RANGE),
        ("nvidia/GR00T-N1.7", 2, 8, 7, NormalizationKind.RANGE),
    ],
)
def test_published_files_parse_into_manifests(tmp_path, name, cameras, state, action, kind):
    manifest = manifest_of(folder_of(name, tmp_path))
    assert len(manifest.cameras) == cameras
    assert (manifest.state.width, manifest.action.width) == (state, action)
    assert manifest.action.normalization.kind is kind
    assert PolicyManifest.from_json(manifest.to_json()) == manifest


def test_libero_of_gr00t_is_read_as_its_files_say(tmp_path):
    manifest = manifest_of(folder_of("nvidia/GR00T-N1.7", tmp_path))
    assert (manifest.embodiment, manifest.handoff) == ("libero_sim", Handoff.CONTEXT)
    assert (manifest.horizon, manifest.rows, manifest.denoise_steps) == (16, 40, 4)
    assert (manifest.direction, manifest.state_input) == (FlowDirection.UP, StateInput.SUFFIX_TOKEN)
    assert (manifest.image_size, manifest.image_crop, manifest.image_tokens) == ((256, 256), 0.95, 64)
    assert (manifest.state.padded, manifest.action.padded) == (132, 132)
    assert manifest.action.names == ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
    assert manifest.state.names[-2:] == ("gripper_0", "gripper_1")
    assert manifest.action.normalization.low[0] == -0.9375  # least and most: use_percentiles is off in this file


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("lerobot/smolvla_base", "has no statistics: neither policy_preprocessor.json"),
        ("lerobot/pi0_base", "names no file of statistics; take a checkpoint that was trained on your robot"),
        ("lerobot/pi05_base", "names no file of statistics; take a checkpoint that was trained on your robot"),
    ],
)
def test_base_models_without_statistics_are_refused(tmp_path, name, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        manifest_of(folder_of(name, tmp_path, statistics=False))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("lerobot/act_trained", "policies of type 'act' are not built: .* one pass"),
        ("lerobot/groot_trained", "policies of type 'groot' are not built: .* N1.7 in NVIDIA's own layout"),
    ],
)
def test_policies_of_other_kinds_are_refused_by_name(tmp_path, name, sentence):
    checkpoint = open_checkpoint(folder_of(name, tmp_path))
    assert isinstance(checkpoint, PolicyCheckpoint)
    with pytest.raises(CheckpointError, match=sentence):
        find_family(checkpoint.kind)


@pytest.mark.parametrize(
    "name",
    [
        "openvla/openvla-7b-oft",
        "nvidia/GR00T-N1.5",
        "nvidia/GR00T-N1",
        "nvidia/GR00T-N1.6 backbone",
        "nvidia/Alpamayo-1.5",
    ],
)
def test_action_models_of_other_layouts_are_no_text_models(tmp_path, name):
    checkpoint = open_checkpoint(folder_of(name, tmp_path))
    with pytest.raises(CheckpointError, match="action model or a part of one"):
        read_config(checkpoint.config)


def test_the_robots_file_of_another_generation_is_refused(tmp_path):
    folder = folder_of("nvidia/GR00T-N1.7", tmp_path)
    content = FILES["nvidia/GR00T-N1.6"]["processor_config.json"]
    (folder / "processor_config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="processor_class is 'Gr00tN1d6Processor'; want 'Gr00tN1d7Processor'"):
        manifest_of(folder)


FULL_GROOT = {**POLICY_SHAPES["groot"].files["config.json"], "max_num_embodiments": 32}


@pytest.mark.parametrize("lowering", ["onnxruntime", "tensorrt", "tensorrt_legacy"])
def test_gr00t_of_its_published_size_makes_its_graphs_from_the_known_backbone(tmp_path, lowering):
    folder = folder_of("nvidia/GR00T-N1.7", tmp_path)
    (folder / "vlm" / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(FULL_GROOT))
    shutil.copy(Path(__file__).parent / "reference" / "groot" / "vlm" / "tokenizer.json", folder / "vlm")
    checkpoint, settings = PolicyCheckpoint(folder), PolicySettings()
    family = find_family(checkpoint.kind)
    model = family.parse(checkpoint, settings)
    checkpoint.shapes = {family.stored_name("", name): shape for name, shape in model.tensors().items()}
    numbers = sum(int(np.prod(shape)) for name, shape in checkpoint.shapes.items() if name.startswith("action_head."))
    assert 1.5e9 < numbers < 1.7e9
    plan = plan_policy(checkpoint, find_lowering(lowering), find_precision("fp32"), settings)
    inputs = {info.name: info.shape for info in plan.graphs["action.onnx"][0].inputs}
    assert inputs["modulation"] == (1, 67, 1536) and inputs["text_key_0"] == (1, 32, 48, "text")
    assert inputs["image_value_2"] == (1, 32, "image", 48) and "text_key_30" not in inputs and "image_key_30" in inputs
    one_robot = sum(parameter.tensors[0].size for parameter in plan.graphs["action.onnx"][0].parameters) / 4
    assert one_robot < 1.1e9  # the other thirty-one robots' matrices are left where they are


def test_every_stored_file_is_covered():
    assert set(FILES) == {
        "lerobot/smolvla_base", "lerobot/smolvla_libero", "lerobot/pi0_base", "lerobot/pi05_base",
        "lerobot/act_trained", "lerobot/groot_trained", "nvidia/GR00T-N1.7", "nvidia/GR00T-N1.6", "nvidia/GR00T-N1.5",
        "nvidia/GR00T-N1", "nvidia/GR00T-N1.6 backbone", "openvla/openvla-7b-oft", "nvidia/Alpamayo-1.5",
    }  # fmt: skip
