"""openpi's robots are named, and a checkpoint that is for another one is refused; its other files are told by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from openpi_checkpoints import ASSETS, CASES, HORIZONS, WIDTHS, add_statistics, statistics, write_openpi
from safetensors.numpy import load_file, save_file

from edgellm_ros.action.policy_manifest import PolicyManifest
from edgellm_ros.builder.action_families.openpi_contracts import CONTRACTS, find_contract
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.checkpoint import open_checkpoint
from edgellm_ros.builder.lowerings import LOWERINGS
from edgellm_ros.builder.policy_build import plan_policy
from edgellm_ros.builder.policy_settings import read_policy_settings
from edgellm_ros.builder.quantize import PRECISIONS
from edgellm_ros.cli.main import main
from edgellm_ros.errors import CheckpointError

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "fixtures" / "openpi_statistics.json").read_text())


def manifest_of(folder, contract=None, settings=None) -> PolicyManifest:
    checkpoint = open_checkpoint(folder)
    try:
        precision = PRECISIONS["fp32"]
        said = read_policy_settings(settings, contract)
        return plan_policy(checkpoint, LOWERINGS["onnxruntime"], precision, said).manifest
    finally:
        checkpoint.close()


def test_libero_is_recognised_by_its_statistics_and_horizon(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "libero")
    assert manifest_of(folder) == manifest_of(folder, "libero")


@pytest.mark.parametrize(
    ("family", "contract", "asset"),
    [*((family, contract, None) for family, contract in CASES if (family, contract) != ("pi05", "libero")),
     ("pi05", "libero", "somebody/cups")],
)  # fmt: skip
def test_every_other_robot_must_be_named(tmp_path, family, contract, asset):
    folder = write_openpi(tmp_path / "policy", family, contract, asset=asset)
    with pytest.raises(CheckpointError, match=r"name it with --policy-contract libero, droid, aloha"):
        manifest_of(folder)
    assert manifest_of(folder, contract).embodiment == contract


@pytest.mark.parametrize(("family", "contract"), CASES)
@pytest.mark.parametrize("change", [-1, 1, 5])
def test_another_horizon_is_refused_and_not_cut(tmp_path, family, contract, change):
    horizon = HORIZONS[family][contract] + change
    folder = write_openpi(tmp_path / "policy", family, contract, action_horizon=horizon)
    with pytest.raises(CheckpointError, match=rf"chunks of {horizon} actions .* the contract {contract} of {family}"):
        manifest_of(folder, contract)


@pytest.mark.parametrize("feature", ["state", "actions"])
@pytest.mark.parametrize("contract", list(WIDTHS))
@pytest.mark.parametrize("more", [-1, 1])
def test_another_width_is_refused_and_not_cut_or_filled(tmp_path, contract, feature, more):
    numbers = statistics(contract)
    width = WIDTHS[contract][feature == "actions"]
    numbers[feature] = {key: ([*row, 1.0])[: width + more] for key, row in numbers[feature].items()}
    folder = write_openpi(tmp_path / "policy", "pi05", contract, numbers=numbers)
    with pytest.raises(CheckpointError, match=rf"{feature} has {width + more} numbers in q01; the contract"):
        manifest_of(folder, contract)


def test_the_statistics_of_another_robot_are_refused(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid", numbers=statistics("aloha"))
    with pytest.raises(CheckpointError, match=r"state has 14 numbers in q01; the contract has 8"):
        manifest_of(folder, "droid")


def padded(numbers, width):
    return {
        feature: {key: row + [0.0] * (width - len(row)) for key, row in part.items()}
        for feature, part in numbers.items()
    }


def test_zeros_behind_the_robots_numbers_are_those_of_older_files(tmp_path):
    numbers = statistics("droid")
    folder = write_openpi(tmp_path / "policy", "pi05", "droid", numbers=padded(numbers, 32))
    assert manifest_of(folder, "droid").state.normalization.low == tuple(numbers["state"]["q01"])
    folder = write_openpi(tmp_path / "other", "pi05", "aloha", numbers=padded(numbers, 32))
    with pytest.raises(CheckpointError, match=r"state has 8 numbers in q01; the contract has 14"):
        manifest_of(folder, "aloha")


def test_of_several_robots_statistics_those_of_the_contract_are_taken(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    add_statistics(folder, ASSETS["aloha"], statistics("aloha"))
    assert manifest_of(folder, "droid").state.width == 8
    add_statistics(folder, "franka", statistics("droid"))
    (folder / "assets" / "droid" / "norm_stats.json").unlink()
    with pytest.raises(CheckpointError, match=r"has the statistics of franka, trossen; the contract wants"):
        manifest_of(folder, "droid")


@pytest.mark.parametrize(
    ("family", "change", "sentence"),
    [
        ("pi05", lambda part: part.pop("q99"), "state has the q99 None; want a list of numbers"),
        ("pi0", lambda part: part.pop("std"), "state has the std None"),
        ("pi0", lambda part: part.update(mean=[10**400] * 8), "state has the mean"),
        ("pi0", lambda part: part.update(mean="none"), "state has the mean 'none'"),
        ("pi05", lambda part: part.update(q01=[], q99=[]), "state has 0 numbers in q01"),
        ("pi0", lambda part: part.update(mean=[True] * 8), "state has the mean"),
        ("pi05", lambda part: part.update(q01=[float("nan")] * 8), "a statistic .* nan"),
        ("pi05", lambda part: part.update(q99=[-1e3] * 8), "a range whose end lies below its start"),
        ("pi05", lambda part: part.clear(), "state has the q01 None"),
    ],
)
def test_statistics_that_cannot_be_used_are_refused_by_name(tmp_path, family, change, sentence):
    numbers = statistics("droid")
    change(numbers["state"])
    folder = write_openpi(tmp_path / "policy", family, "droid", numbers=numbers)
    with pytest.raises(CheckpointError, match=sentence):
        manifest_of(folder, "droid")


def test_without_statistics_the_sentence_says_where_they_go(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    file = folder / "assets" / "droid" / "norm_stats.json"
    file.write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no norm_stats of 'state'"):
        manifest_of(folder, "droid")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"has no statistics; put those of the checkpoint at .*assets/droid/"):
        manifest_of(folder, "droid")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"paligemma_variant": "gemma_2b_lora"}, "with adapters that openpi's conversion leaves out"),
        ({"action_expert_variant": "gemma_300m_lora"}, "with adapters that openpi's conversion leaves out"),
        ({"pi05": False}, "pi05 is False; want True"),
        ({"discrete_state_input": False}, "discrete_state_input is False; want True"),
        ({"max_token_len": 48}, "max_token_len is 48; want 200"),
        ({"action_dim": 7}, r"'action_\w+.weight' of shape"),
    ],
)
def test_a_configuration_that_disagrees_is_refused(tmp_path, changes, sentence):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid", **changes)
    with pytest.raises(CheckpointError, match=sentence):
        manifest_of(folder, "droid")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("meaning: twist", "have meaning, which the contract says already"),
        ("step_time: 0.1", "have step_time, which the contract says already"),
        ("optional_cameras: [wrist_image_left]", "have optional_cameras, which"),
        ("embodiment: franka", "have embodiment, which"),
        ("contract: aloha", "contract is aloha where droid is asked for"),
        ("state: {units: [deg, deg, deg, deg, deg, deg, deg, '1']}", "the contract has rad, rad"),
        ("state: {names: [a, b]}", "have 2 state names; the checkpoint has 8"),
    ],
)
def test_settings_that_contradict_the_contract_are_refused(tmp_path, text, sentence):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    (tmp_path / "robot.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=sentence):
        manifest_of(folder, "droid", tmp_path / "robot.yaml")


def test_settings_may_name_the_contract_and_the_joints(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    names = [f"fr3_joint{number}" for number in range(1, 8)] + ["fr3_gripper"]
    (tmp_path / "robot.yaml").write_text(json.dumps({"contract": "droid", "state": {"names": names}}))
    manifest = manifest_of(folder, None, tmp_path / "robot.yaml")
    assert list(manifest.state.names) == names and manifest.action.names[0] == "joint_1"


def test_a_contract_is_refused_where_there_is_none_to_name(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    with pytest.raises(CheckpointError, match=r"'ur5e' is named .* want one of libero, droid, aloha"):
        manifest_of(folder, "ur5e")
    with pytest.raises(CheckpointError, match=r"'droid' is named for a policy of type 'pi0'; want none"):
        manifest_of(HERE / "reference" / "pi0", "droid")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 300, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"for a model that is no policy"):
        build_engine(tmp_path / "config.json", tmp_path / "engine", random_seed=1, policy_contract="droid")


def test_random_weights_are_not_made_of_a_configuration_that_does_not_tell_the_family(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    with pytest.raises(CheckpointError, match=r"whose config.json does not tell all sizes"):
        build_engine(folder / "config.json", tmp_path / "engine", random_seed=1, policy_contract="droid")


@pytest.mark.parametrize("mark", ["params/_METADATA", "params/manifest.ocdbt", "_METADATA"])
def test_jax_parameters_are_refused_with_what_converts_them(tmp_path, mark):
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds JAX parameters .* convert them with openpi"):
        open_checkpoint(tmp_path)


def test_what_openpis_trainer_writes_lacks_a_configuration(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config.json; write one with action_dim, action_horizon, paligemma"):
        open_checkpoint(folder)


def test_tensors_of_both_kinds_are_refused(tmp_path):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "state_proj.weight": np.zeros((24, 16), np.float32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"both time_mlp_in and state_proj"):
        manifest_of(folder, "droid")


def test_the_statistics_count_for_what_was_built_before(tmp_path):
    folder, digests = write_openpi(tmp_path / "policy", "pi05", "droid"), set()
    for spread in (64.0, 65.0):
        add_statistics(folder, "droid", statistics("droid", spread=spread))
        checkpoint = open_checkpoint(folder)
        digests.add(checkpoint.digest())
        checkpoint.close()
    assert len(digests) == 2


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_statistics_fit_their_robot_or_are_refused(tmp_path, name):
    family = "pi0" if name.startswith("pi0_") else "pi05"
    folder = write_openpi(tmp_path / "policy", family, "libero", numbers=PUBLISHED[name]["norm_stats"])
    if name == "humanoid":
        with pytest.raises(CheckpointError, match=r"state has 24 numbers in q01; the contract has 8"):
            manifest_of(folder, "libero")
        return
    manifest = manifest_of(folder, "libero")
    low, high = ("mean", "std") if family == "pi0" else ("q01", "q99")
    for part, feature in ((manifest.state, "state"), (manifest.action, "actions")):
        row = PUBLISHED[name]["norm_stats"][feature]
        assert (part.normalization.low, part.normalization.high) == (tuple(row[low]), tuple(row[high]))
    assert PolicyManifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_contracts_are_whole(name):
    contract = CONTRACTS[name]
    assert (len(contract.state), len(contract.action)) == WIDTHS[name]
    for family, horizon in HORIZONS.items():
        assert find_contract(name, family, horizon[name], "", "it") is contract
        assert contract.execute_steps <= horizon[name]


def test_the_command_takes_the_contract(tmp_path, capsys):
    folder = write_openpi(tmp_path / "policy", "pi05", "droid")
    assert main(["build", str(folder), str(tmp_path / "engine"), "--check"]) != 0
    assert "--policy-contract libero, droid, aloha" in capsys.readouterr().err
    assert main(["build", str(folder), str(tmp_path / "engine"), "--check", "--policy-contract", "droid"]) == 0
