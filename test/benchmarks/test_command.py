"""``python -m benchmarks.run``: choosing cases, exit codes and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_specs import KEYS, scripted

from benchmarks import policy_shape, run
from benchmarks.cases import CASES, policy, vision
from benchmarks.harness import Case, EngineSpec, Metric, SkippedPeer
from benchmarks.workspace import PreparationError, Workspace
from edgellm_ros.builder.build_plan import plan_build
from edgellm_ros.builder.random_policy import open_random

RESULTS = Path(run.__file__).parent / "results"


def good(workspace: Workspace) -> Case:
    ours = scripted("ours", [1, 2, 3])
    return Case("good", ours, (Metric("rate", "tokens/s"),), "work", {}, (SkippedPeer("absent", "not installed"),))


def unprepared(workspace: Workspace) -> Case:
    raise PreparationError("there are no weights")


def broken(workspace: Workspace) -> Case:
    return Case("broken", EngineSpec("ours", "no_such_module:Engine"), (), "work")


@pytest.fixture(autouse=True)
def cases(monkeypatch):
    monkeypatch.setattr(run, "CASES", {"good": good, "unprepared": unprepared, "broken": broken})


def test_good_case_prints_the_table_and_writes_rows(tmp_path, capsys):
    output = tmp_path / "folder" / "rows.json"
    assert run.main(["--case", "good", "--rounds", "2", "--output", str(output)]) == 0
    (row,) = json.loads(output.read_text(encoding="utf-8"))
    assert set(row) == KEYS
    assert row["runs"]["ours"] == [2, 3]
    assert "skipped: absent: not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "reason"), [("unprepared", "there are no weights"), ("broken", "ModuleNotFoundError")]
)
def test_a_failed_case_is_named_and_the_others_still_run(name, reason, capsys):
    assert run.main(["--case", name, "--case", "good", "--rounds", "2"]) == 1
    text = capsys.readouterr().out
    assert f"failed: {name}: " in text
    assert reason in text
    assert "tokens/s" in text


@pytest.mark.parametrize(
    "arguments", [["--case", "nothing"], ["--rounds", "0"], ["--threads", "0"], ["--bad"]], ids=lambda words: words[0]
)
def test_wrong_option_is_exit_code_2(arguments):
    with pytest.raises(SystemExit) as stop:
        run.main(arguments)
    assert stop.value.code == 2


def test_list_names_the_cases_and_runs_none(capsys):
    assert run.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == ["good", "unprepared", "broken"]


def test_case_names_say_their_subject_and_do_not_start_one_another():
    assert len({*CASES}) == len(CASES)
    assert not [(a, b) for a in CASES for b in CASES if a != b and a.startswith(b)]


def test_peers_without_their_packages_are_skipped_with_the_option_that_helps(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    bare.chmod(0o755)
    workspace = Workspace(cache=tmp_path, llama_python=str(bare), torch_python="/no/such/python")
    llama, torch = workspace.llama_cpp("q8_0"), workspace.torch()
    assert isinstance(llama, SkippedPeer)
    assert "--llama-python" in llama.reason
    assert isinstance(torch, SkippedPeer)
    assert "cannot be started" in torch.reason


def test_committed_results_have_the_agreed_keys():
    for path in sorted(RESULTS.glob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))
        assert rows, path
        assert all(set(row) >= KEYS and set(row["runs"]) == {"ours", "peer"} for row in rows), path
        assert all(set(row) == KEYS or {"model", "precision", "median", "p95"} <= set(row) for row in rows), path


def test_cases_of_policies_say_what_was_measured():
    workspace = Workspace()
    workspace.policy_directory = lambda precision: Path(precision)
    for name, make in {**policy.CASES, **vision.CASES}.items():
        if name != "policy_node":
            assert {"model", "views", "precision", "backend"} <= set(make(workspace).facts), name
        if name.startswith("policy_smolvla"):
            assert {"prefix_tokens", "horizon", "steps"} <= set(make(workspace).facts)
    assert CASES.keys() >= policy.CASES.keys() | vision.CASES.keys()


def test_the_shape_of_a_policy_is_read_by_the_builder(tmp_path):
    plan = plan_build(
        open_random(policy_shape.write_smolvla_shape(tmp_path)), precision="fp32", limits=None, lowering="onnxruntime"
    )
    manifest = plan.policy.manifest
    assert (manifest.image_tokens, manifest.rows) == (policy_shape.IMAGE_TOKENS, policy_shape.HORIZON)
    assert len(f"{policy_shape.TASK}\n") == policy_shape.TEXT_TOKENS  # in a tokenizer of bytes
    total = (sum(plan.policy.sizes.values()) + plan.vision.files.data_size) / 4 + 49280 * 960
    assert 3.8e8 < total < 4.5e8  # the language model's head and last layer are not needed to act
