"""pi0 and pi0.5 from openpi's files: the chunks of the same weights in lerobot's, but for what openpi does otherwise.

What it does otherwise is computed here again, in plain numpy from its formulas.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from openpi_checkpoints import (
    CASES,
    HORIZONS,
    PADDED,
    WIDTHS,
    seen,
    statistics,
    write_lerobot,
    write_openpi,
)
from policy_checkpoints import scaled_error

from edgellm_ros.action import robot_adapter
from edgellm_ros.action.normalization import EpsilonRule, Normalization, NormalizationKind
from edgellm_ros.action.policy_manifest import StateInput
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import RequestError

SIGNS = np.array([1, -1, -1, 1, 1, 1, 1, 1, -1, -1, 1, 1, 1, 1])
ARMS, GRIPPERS = [*range(6), *range(7, 13)], [6, 13]
TASK = " open_the\ndrawer "


def policy_state(contract, state):
    """The robot's state as openpi's transforms give it to the statistics."""
    if contract != "aloha":
        return state
    turned = SIGNS * state
    for place in GRIPPERS:
        opening = 0.01844 + state[place] * (0.05800 - 0.01844)
        angle = math.asin((0.022**2 + opening**2 - 0.036**2) / (2 * 0.022 * opening))
        turned[place] = (angle - 0.5476) / (1.6296 - 0.5476)
    return turned


def robot_rows(family, contract, normalised, state, numbers):
    """The network's numbers as openpi's transforms give them to the robot."""
    rows, part = normalised.astype(np.float64), {key: np.array(row) for key, row in numbers["actions"].items()}
    if family == "pi0":
        rows = rows * (part["std"] + 1e-6) + part["mean"]
    else:
        rows = (rows + 1) / 2 * (part["q99"] - part["q01"] + 1e-6) + part["q01"]
    if contract == "aloha":
        rows[:, ARMS] += policy_state(contract, state)[ARMS]
        rows = SIGNS * rows
        rows[:, GRIPPERS] = (rows[:, GRIPPERS] + 0.5476 + 0.6213) / (1.4910 + 0.6213)
    elif (family, contract) == ("pi0", "libero"):
        rows[:, :6] += state[:6]
    return rows


def robot_state(contract):
    rng = np.random.default_rng(2)
    state = rng.uniform(-1.5, 1.5, WIDTHS[contract][0])
    if contract == "aloha":
        state[GRIPPERS] = 0.2, 0.9
    return state


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    root = tmp_path_factory.mktemp("openpi")
    return {
        (family, contract): build_engine(
            write_openpi(root / f"{family}_{contract}", family, contract),
            root / f"{family}_{contract}_engine",
            policy_contract=contract,
        )
        for family, contract in CASES
    }


@pytest.fixture(scope="module")
def lerobot_engines(tmp_path_factory):
    root = tmp_path_factory.mktemp("lerobot")
    return {
        (family, contract): build_engine(
            write_lerobot(root / f"{family}_{contract}", family, contract), root / f"{family}_{contract}_engine"
        )
        for family, contract in CASES
    }


def compute(path, contract, state, task="open the drawer", *, manifest=None, **options):
    with PolicyRuntime(path, threads=1) as opened:
        opened.manifest = replace(opened.manifest, **(manifest or {}))
        noise = np.random.default_rng(9).standard_normal((opened.manifest.horizon, PADDED)).astype(np.float32)
        return opened.compute(seen(contract, state), task, noise=noise, denoise_steps=3, **options)


@pytest.mark.parametrize(("family", "contract"), CASES)
def test_the_chunk_is_that_of_the_same_weights_in_lerobots_files(engines, lerobot_engines, family, contract):
    state = robot_state(contract)
    found = compute(engines[family, contract], contract, state, TASK)
    blind = {"state_input": StateInput.NONE, "prompt_format": "{task}\n"}  # lerobot's pi0.5 reads its state in any case
    prompt = blind if (family, contract) == ("pi05", "libero") else {}
    wanted = compute(lerobot_engines[family, contract], contract, policy_state(contract, state), manifest=prompt)
    assert scaled_error(found.normalised, wanted.normalised) < 1e-6
    assert found.rows.shape == (HORIZONS[family][contract], WIDTHS[contract][1])


@pytest.mark.parametrize(("family", "contract"), CASES)
def test_rows_are_in_robot_units_as_openpis_formulas_say(engines, family, contract):
    state = robot_state(contract)
    found = compute(engines[family, contract], contract, state)
    wanted = robot_rows(family, contract, found.normalised, state, statistics(contract))
    assert scaled_error(found.rows, wanted) < 1e-6


@pytest.mark.parametrize("family", ["pi0", "pi05"])
def test_the_small_number_is_added_to_every_deviation_and_range_in_both_directions(tmp_path, family):
    numbers = statistics("droid")
    for part in numbers.values():
        part["q01"][2] = part["mean"][2] = 0.0
        part["q99"][2], part["std"][2] = 3e-6, 3e-6
        part["q99"][4] = part["q01"][4] = part["mean"][4] = part["std"][4] = 0.0
    path = build_engine(
        write_openpi(tmp_path / "folder", family, "droid", numbers=numbers), tmp_path / "engine",
        policy_contract="droid",
    )  # fmt: skip
    state = robot_state("droid")
    state[[2, 4]] = 1e-6, 3e-7
    with PolicyRuntime(path, threads=1) as opened:
        found = opened.manifest.state.normalization.normalize(state)[[2, 4]]
    plain = np.array([1e-6 / 4e-6, 3e-7 / 1e-6])
    assert found == pytest.approx(plain if family == "pi0" else 2 * plain - 1, abs=1e-6)
    chunk = compute(path, "droid", state)
    wanted = robot_rows(family, "droid", chunk.normalised, state, numbers)
    for place in (2, 4):
        assert np.abs(wanted[:, place]).max() > 0
        assert scaled_error(chunk.rows[:, place], wanted[:, place]) < 1e-5


def prompt_of(path, task, state):
    with PolicyRuntime(path, threads=1) as opened:
        ids = opened.encode_task(task, opened.manifest.state.normalization.normalize(state))
        return b"".join(map(opened.tokenizer.token_bytes, ids)).decode(), ids


@pytest.mark.parametrize("contract", ["droid", "aloha"])
def test_pi05_reads_its_state_in_bins_of_which_the_lowest_lies_below_the_range(engines, contract):
    part = {key: np.array(row) for key, row in statistics(contract)["state"].items()}
    shares = np.linspace(-0.23, 1.2, WIDTHS[contract][0])
    state = part["q01"] + shares * (part["q99"] - part["q01"])
    bins = [-1 if share < 0 else min(int(share * 256), 255) for share in shares]
    text, ids = prompt_of(engines["pi05", contract], TASK, state)
    words = " ".join(map(str, bins))
    assert bins[0] == -1 and bins[-1] == 255
    assert text.removeprefix("<bos>") == f"Task: open the drawer, State: {words};\nAction: "
    assert ids[0] == 2 and 1 not in ids  # begun and not ended


def test_the_middle_of_a_range_lies_a_hair_below_the_middle_bin(engines):
    part = {key: np.array(row) for key, row in statistics("droid")["state"].items()}
    state = (part["q01"] + part["q99"]) / 2  # 32-bit numbers do not see 1e-6 beside these ranges
    text, _ = prompt_of(engines["pi05", "droid"], TASK, state)
    assert f"State: {' '.join(['127'] * 8)};" in text


@pytest.mark.parametrize(("family", "contract"), [*((("pi0", name)) for name in WIDTHS), ("pi05", "libero")])
def test_the_others_read_the_task_and_a_line_end(engines, family, contract):
    text, _ = prompt_of(engines[family, contract], TASK, robot_state(contract))
    assert text.removeprefix("<bos>") == "open the drawer\n"


@pytest.mark.parametrize(("family", "limit"), [("pi0", 48), ("pi05", 200)])
def test_a_prompt_beyond_the_limit_is_refused_and_not_cut(engines, family, limit):
    with (
        PolicyRuntime(engines[family, "libero"], threads=1) as opened,
        pytest.raises(RequestError, match=rf"tokens; the policy takes {limit}"),
    ):
        opened.encode_task("xyz " * 200)


@pytest.mark.parametrize(("family", "contract"), CASES)
def test_rows_that_a_robot_is_bound_to_go_back_the_same_way(engines, family, contract):
    state, path = robot_state(contract), engines[family, contract]
    chunk = compute(path, contract, state)
    with PolicyRuntime(path, threads=1) as opened:
        back = opened._committed(chunk.rows, policy_state(contract, state))
    width = WIDTHS[contract][1]
    assert scaled_error(back[:, :width], chunk.normalised) < 1e-5 and not back[:, width:].any()


ALOHA = robot_adapter.ADAPTERS["aloha"]


@pytest.mark.parametrize(
    "change",
    [
        {"flipped": (1, 2, 8)},
        {"flipped": (1, 2, 8, 9, 10)},
        {"grippers": (6,)},
        {"gripper": replace(ALOHA.gripper, horn=0.023)},
        {"gripper": replace(ALOHA.gripper, angle=replace(ALOHA.gripper.angle, low=0.4))},
    ],
    ids=str,
)
def test_a_wrong_sign_or_gripper_changes_state_and_rows(engines, monkeypatch, change):
    state, path = robot_state("aloha"), engines["pi05", "aloha"]
    right = compute(path, "aloha", state)
    monkeypatch.setitem(robot_adapter.ADAPTERS, "aloha", replace(ALOHA, **change))
    wanted = robot_rows("pi05", "aloha", right.normalised, state, statistics("aloha"))
    with PolicyRuntime(path, threads=1) as opened:
        broken = opened._robot_units(right.normalised, opened.manifest.robot.state_to_policy(state))
        given = opened.manifest.robot.state_to_policy(state)
    assert np.abs(broken - wanted).max() > 1e-3 or np.abs(given - policy_state("aloha", state)).max() > 1e-3


@pytest.mark.parametrize("places", [(), (*ARMS, 6), tuple(ARMS[:-1])])
def test_a_wrong_choice_of_deltas_changes_the_rows(engines, places):
    state = robot_state("aloha")
    with PolicyRuntime(engines["pi05", "aloha"], threads=1) as opened:
        assert opened.manifest.delta_dimensions == tuple(ARMS)
        opened.manifest = replace(opened.manifest, delta_dimensions=places)
        chunk = opened.compute(seen("aloha", state), "open the drawer", noise_seed=1, denoise_steps=1)
    wanted = robot_rows("pi05", "aloha", chunk.normalised, state, statistics("aloha"))
    assert np.abs(chunk.rows - wanted).max() > 1e-2


@pytest.mark.parametrize("rule", [rule for rule in EpsilonRule if rule is not EpsilonRule.ALWAYS])
def test_a_wrong_rule_for_the_small_number_is_another_normalisation(rule):
    low, high, x = (0.0, 0.0), (3e-6, 0.0), np.array([1e-6, 3e-7])
    wanted = [2 * 1e-6 / 4e-6 - 1, 2 * 3e-7 / 1e-6 - 1]
    right = Normalization(NormalizationKind.RANGE, low, high, 1e-6, EpsilonRule.ALWAYS)
    assert right.normalize(x) == pytest.approx(wanted, abs=1e-6)
    wrong = replace(right, rule=rule)
    assert (
        np.abs(wrong.normalize(x) - wanted).max() > 0.1 or np.abs(wrong.unnormalize(x) - right.unnormalize(x)).max() > 0
    )
