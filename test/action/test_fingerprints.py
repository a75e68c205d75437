"""A policy's parts belong to one build: what was mixed is refused by name, whatever the directory's samples say."""

from __future__ import annotations

import json
import shutil

import pytest
from policy_checkpoints import reference
from safetensors.numpy import load_file, save_file

from edgellm_ros.action.fingerprints import statistics_digest, tokenizer_digest
from edgellm_ros.action.policy_manifest import read_policy_manifest
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.policy_checkpoint import PolicyCheckpoint
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import EngineDirectoryError, PolicyError
from edgellm_ros.file_sample import file_samples

FOLDER = reference("smolvla")[0]


def changed_statistics(folder):
    """The checkpoint with other statistics of the action."""
    (file,) = folder.glob("policy_postprocessor*.safetensors")
    values = load_file(file)
    save_file({name: value * 1.5 if name == "action.std" else value for name, value in values.items()}, file)


def changed_weights(folder):
    values = load_file(folder / "model.safetensors")
    name = next(name for name in values if "action_out_proj.bias" in name)
    save_file({**values, name: values[name] + 1}, folder / "model.safetensors")


def changed_tokenizer(folder):
    file = folder / "vlm" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": 77}))


CHANGES = {"statistics": changed_statistics, "weights": changed_weights, "tokenizer": changed_tokenizer}


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """The reference's engine directory, and those of the same checkpoint with one change each."""
    root = tmp_path_factory.mktemp("builds")
    made = {"": build_engine(FOLDER, root / "same")}
    for name, change in CHANGES.items():
        change(shutil.copytree(FOLDER, root / name))
        made[name] = build_engine(root / name, root / f"{name}-engine")
    return made


def found(path):
    return read_policy_manifest(path / "action").fingerprints


def mixed(target, path, name, source):
    """A copy of a directory with a part of another, and samples that fit both."""
    shutil.copytree(path, target)
    place = target / name
    if (source / name).is_dir():
        shutil.rmtree(place)
        shutil.copytree(source / name, place)
    else:
        shutil.copyfile(source / name, place)
    sealed(target)
    return target


def sealed(path):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = {name: (path / name).stat().st_size for name in manifest["files"]}
    manifest["samples"] = file_samples(path, manifest["files"])
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_fingerprints_are_of_what_they_say(builds):
    ours, manifest = found(builds[""]), read_policy_manifest(builds[""] / "action")
    with_checkpoint = PolicyCheckpoint(FOLDER)
    assert ours.checkpoint == with_checkpoint.digest()
    with_checkpoint.close()
    assert ours.statistics == statistics_digest(manifest.state.normalization, manifest.action.normalization)
    names = ("tokenizer.json", "tokenizer_config.json")
    assert ours.tokenizer == tokenizer_digest({name: (builds[""] / name).read_bytes() for name in names})
    assert ours.build == open_engine_directory(builds[""]).manifest.fingerprint
    assert len({ours.checkpoint, ours.statistics, ours.tokenizer, ours.build, "0" * 64}) == 5


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("statistics", {"checkpoint", "statistics", "build"}),
        ("weights", {"checkpoint", "build"}),
        ("tokenizer", {"checkpoint", "tokenizer", "build"}),
    ],
)
def test_what_changes_is_told_by_its_own_fingerprint(builds, name, differs):
    ours, other = found(builds[""]), found(builds[name])
    parts = ("checkpoint", "statistics", "tokenizer", "build")
    assert {part for part in parts if getattr(ours, part) != getattr(other, part)} == differs


@pytest.mark.parametrize(
    ("name", "part", "sentence"),
    [
        ("statistics", "action", "the policy was built with .*; take the files of one build"),
        ("weights", "action", "the policy was built with .*; take the files of one build"),
        ("weights", "visual", r"visual has the fingerprint '.*' where the policy was built with '.*'; take the files"),
        ("tokenizer", "tokenizer_config.json", r"the tokenizer in .* has the fingerprint '.*' where the policy was"),
        ("weights", "action/policy.json", "the policy was built with .*; take the files of one build"),
    ],
)
def test_parts_of_another_build_are_refused_though_samples_fit(builds, tmp_path, name, part, sentence):
    path = mixed(tmp_path / "engine", builds[""], part, builds[name])
    with pytest.raises(PolicyError, match=sentence):
        PolicyRuntime(path, threads=1)


def test_a_statistic_that_was_written_over_is_refused_and_told_by_the_check(builds, tmp_path, capsys):
    path = shutil.copytree(builds[""], tmp_path / "engine")
    file = path / "action" / "policy.json"
    content = json.loads(file.read_text())
    content["action"]["normalization"]["high"][0] *= 2
    file.write_text(json.dumps(content))
    with pytest.raises(EngineDirectoryError, match=r"policy\.json (has|is not)"):
        PolicyRuntime(path, threads=1)
    sealed(path)
    with pytest.raises(PolicyError, match=r"the statistics in .*policy\.json has the fingerprint .*; take the files"):
        PolicyRuntime(path, threads=1)
    assert main(["check", str(path)]) == 1
    assert "1.       directory  the statistics in" in capsys.readouterr().out


def test_a_sound_copy_acts_and_the_command_tells_what_it_was_built_of(builds, tmp_path, capsys):
    path = mixed(tmp_path / "engine", builds[""], "action", builds[""])
    PolicyRuntime(path, threads=1).close()
    assert main(["info", str(path)]) == 0
    ours = found(path)
    assert f"checkpoint {ours.checkpoint[:16]}, statistics {ours.statistics[:16]}" in capsys.readouterr().out
