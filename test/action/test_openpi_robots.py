"""What openpi's robots are in a manifest: cameras, names, horizons, meanings; and checkpoints of the published size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from openpi_checkpoints import CAMERAS, CASES, HORIZONS, PADDED, SIDE, WIDTHS, seen, write_openpi

from edgellm_ros.action.normalization import EpsilonRule
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_manifest import ActionMeaning, ImageFit, StateInput
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.lowerings import LOWERINGS
from edgellm_ros.builder.policy_build import plan_policy
from edgellm_ros.builder.policy_checkpoint import PolicyCheckpoint
from edgellm_ros.builder.policy_settings import PolicySettings
from edgellm_ros.builder.quantize import PRECISIONS
from edgellm_ros.cli.main import main
from edgellm_ros.errors import ObservationError


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    root = tmp_path_factory.mktemp("openpi")
    return {
        contract: build_engine(
            write_openpi(root / contract, "pi05", contract), root / f"{contract}_engine", policy_contract=contract
        )
        for contract in WIDTHS
    }


def robot_state(contract):
    return np.full(WIDTHS[contract][0], 0.5)


def plan(folder, contract, kind=PolicyCheckpoint):
    checkpoint = kind(folder)
    try:
        settings = PolicySettings(contract=contract)
        return plan_policy(checkpoint, LOWERINGS["onnxruntime"], PRECISIONS["fp32"], settings)
    finally:
        checkpoint.close()


@pytest.mark.parametrize(("family", "contract"), CASES)
def test_manifests_say_what_the_contracts_say(tmp_path, family, contract):
    manifest = plan(write_openpi(tmp_path / "policy", family, contract), contract).manifest
    state, action = WIDTHS[contract]
    assert (manifest.family, manifest.embodiment, manifest.horizon) == (family, contract, HORIZONS[family][contract])
    assert (manifest.state.width, manifest.action.width) == (state, action)
    assert (manifest.state.padded, manifest.action.padded) == (PADDED, PADDED)
    assert (manifest.image_fit, manifest.image_size) == (ImageFit.PAD_CENTRE_SMOOTH, (SIDE, SIDE))
    assert [slot.name for slot in manifest.seen_cameras] == list(CAMERAS[contract])
    for part in (manifest.state, manifest.action):
        assert (part.normalization.epsilon, part.normalization.rule) == (1e-6, EpsilonRule.ALWAYS)
    meaning, step, chunk = {
        "libero": (ActionMeaning.DELTA_POSE, 0.05, 5),
        "droid": (ActionMeaning.JOINT_VELOCITY, 1 / 15, 8),
        "aloha": (ActionMeaning.JOINT_POSITION, 0.02, 25),
    }[contract]
    assert (manifest.meaning, manifest.step_time, manifest.execute_steps) == (meaning, step, chunk)
    if family == "pi0":
        assert manifest.state_input is StateInput.SUFFIX_TOKEN
    else:
        assert manifest.state_input is (StateInput.NONE if contract == "libero" else StateInput.PROMPT_BINS)


def test_aloha_needs_one_camera_can_do_without_two_and_does_not_look_at_the_fourth(engines):
    state = robot_state("aloha")
    with PolicyRuntime(engines["aloha"], threads=1) as opened:

        def rows(*cameras, extra=None):
            observation = seen("aloha", state, cameras=cameras)
            pictures = {**observation.images, **({} if extra is None else {"cam_low": extra})}
            return opened.compute(Observation(pictures, state), "open the drawer", noise_seed=3, denoise_steps=1).rows

        all_three = rows("cam_high", "cam_left_wrist", "cam_right_wrist")
        low = np.full((SIDE, SIDE, 3), 200, np.uint8)
        assert (rows("cam_high", "cam_left_wrist", "cam_right_wrist", extra=low) == all_three).all()
        assert (rows("cam_high") != all_three).any()
        with pytest.raises(ObservationError, match="camera 'cam_high' is missing"):
            rows("cam_left_wrist", "cam_right_wrist")


@pytest.mark.parametrize("contract", ["libero", "droid"])
def test_the_others_need_both_cameras_and_know_no_third(engines, contract):
    first, second = CAMERAS[contract]
    state = robot_state(contract)
    with PolicyRuntime(engines[contract], threads=1) as opened:
        for missing, kept in ((first, second), (second, first)):
            with pytest.raises(ObservationError, match=f"camera '{missing}' is missing"):
                opened.compute(seen(contract, state, cameras=(kept,)), "open the drawer")
        observation = seen(contract, state)
        third = {**observation.images, "right_wrist_0_rgb": observation.images[first]}
        with pytest.raises(ObservationError, match="has no camera 'right_wrist_0_rgb'"):
            opened.compute(replace(observation, images=third), "open the drawer")


def test_info_says_what_a_policy_takes_and_gives(engines, capsys):
    assert main(["info", str(engines["aloha"])]) == 0
    said = capsys.readouterr().out
    assert "pi05 for aloha: 50 actions of 0.02 s a chunk, 10 denoise steps, meaning joint_position" in said
    assert "cam_high, cam_left_wrist (may be missing), cam_right_wrist (may be missing), cam_low (ignored)" in said
    assert "actions:    left_waist [rad], " in said and "right_gripper [1]\n" in said


def test_warming_up_gives_a_robot_a_state_that_it_can_have(engines):
    with PolicyRuntime(engines["aloha"], threads=1) as opened:
        opened.warm_up()


def gemma(root, width, inner, adaptive):
    shapes = {}
    for layer in range(18):
        linears = {"q": (2048, width), "k": (256, width), "v": (256, width), "o": (width, 2048)}
        place = f"{root}layers.{layer}."
        shapes |= {f"{place}self_attn.{name}_proj.weight": shape for name, shape in linears.items()}
        shapes |= {f"{place}mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        shapes[f"{place}mlp.down_proj.weight"] = (width, inner)
        for norm in (f"{place}input_layernorm", f"{place}post_attention_layernorm"):
            shapes |= norm_of(norm, width, adaptive)
    return {**shapes, **norm_of(f"{root}norm", width, adaptive)}


def norm_of(name, width, adaptive):
    if adaptive:
        return {f"{name}.dense.weight": (3 * width, width), f"{name}.dense.bias": (3 * width,)}
    return {f"{name}.weight": (width,)}


class Published(PolicyCheckpoint):
    """A folder with the shapes of what openpi's conversion writes of a published checkpoint, but for the pictures'."""

    def __init__(self, folder):
        super().__init__(folder)
        adaptive = "time_mlp_in.weight" in self.shapes
        linears = {"action_in_proj": (1024, 32), "action_out_proj": (32, 1024)}
        if adaptive:
            linears |= {"time_mlp_in": (1024, 1024), "time_mlp_out": (1024, 1024)}
        else:
            linears |= {"action_time_mlp_in": (1024, 2048), "action_time_mlp_out": (1024, 1024)}
            linears["state_proj"] = (1024, 32)
        self.shapes = {
            **{f"{name}.weight": shape for name, shape in linears.items()},
            **{f"{name}.bias": shape[:1] for name, shape in linears.items()},
            **gemma("paligemma_with_expert.paligemma.model.language_model.", 2048, 16384, False),
            **gemma("paligemma_with_expert.gemma_expert.model.", 1024, 4096, adaptive),
            "paligemma_with_expert.paligemma.lm_head.weight": (257152, 2048),
            "paligemma_with_expert.gemma_expert.lm_head.weight": (257152, 1024),
        }


@pytest.mark.parametrize(("family", "contract"), [("pi0", "aloha"), ("pi05", "libero"), ("pi05", "droid")])
def test_checkpoints_of_the_published_size_need_no_configuration_of_the_language_model(tmp_path, family, contract):
    folder = write_openpi(tmp_path / "policy", family, contract, action_dim=32)
    (folder / "vlm" / "config.json").unlink()
    made = plan(folder, contract, Published)
    manifest, language = made.manifest, made.language
    assert (manifest.state.padded, manifest.action.padded, manifest.head_dim) == (32, 32, 256)
    assert (manifest.image_size, manifest.image_tokens) == ((224, 224), 256)
    assert manifest.text_scale == 2048**0.5 and manifest.time_waves[0].count == 512
    assert language.text.shapes["model.embed_tokens.weight"] == (257152, 2048)
    weights = made.sizes["action.onnx.data"] + made.sizes["prefix.onnx.data"] + made.sizes.get("time.onnx.data", 0)
    assert weights == pytest.approx(4 * (1.98e9 + (0.43e9 if family == "pi05" else 0.31e9)), rel=0.06)
