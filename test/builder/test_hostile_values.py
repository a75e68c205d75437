"""Whatever stands under a key of a checkpoint's JSON files, it is used or refused in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm_ros.builder.huggingface_checkpoint import HuggingFaceCheckpoint
from edgellm_ros.cli.main import main
from edgellm_ros.errors import EdgeLLMError

TINY = Path(__file__).parents[1] / "reference" / "tiny_llama"
ANYTHING = {
    "huge": 10**400, "nan": float("nan"), "infinite": float("inf"), "negative": -1, "none": None, "true": True,
    "text": "x", "half a character": "\ud800", "long": "x" * 100_000, "list": [], "lists": [[[]]],
    "texts": ["x"] * 1000, "object": {}, "scaling": {"rope_type": "linear", "factor": 10**400},
    "method": {"quant_method": ["x" * 100_000]},
}  # fmt: skip
KEYS = [
    *json.loads((TINY / "config.json").read_text()), "rope_scaling", "rope_parameters", "layer_types", "text_config",
    "quantization_config", "quantization", "vision_config", "sliding_window", "_name_or_path", "auto_map",
]  # fmt: skip


@pytest.mark.parametrize("key", dict.fromkeys(KEYS))
def test_any_value_of_a_configuration_is_used_or_refused_in_a_sentence(tmp_path, capsys, key):
    folder = tmp_path / "checkpoint"
    shutil.copytree(TINY, folder)
    config = json.loads((TINY / "config.json").read_text())
    for name, value in ANYTHING.items():
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        status = main(["build", "--check", str(folder), str(tmp_path / "engine")])
        out, err = capsys.readouterr()
        assert status in (0, 2), name
        if status == 2:
            assert not out and err.count("\n") == 1 and len(err) < 1300 and err.endswith(".\n"), name
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_null_where_quantised_checkpoints_say_how_is_none(tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(TINY, folder)
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    assert main(["build", "--check", str(folder), str(tmp_path / "engine")]) == 0


def test_what_an_error_quotes_never_makes_it_more_than_a_line():
    sentence = str(EdgeLLMError("found " + "x\n" * 100_000 + "\x1b[31m\ud800; want less: shorten it."))
    assert len(sentence) == 1200
    assert "\n" not in sentence and "\x1b" not in sentence and sentence.endswith("want less: shorten it.")
    sentence.encode()


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(TINY, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def refusal(capsys, folder, *options) -> str:
    """The sentence of a refused build and of its check."""
    sentences = set()
    for flags in (["--check"], []):
        assert main(["build", *flags, *options, str(folder), str(folder.parent / "engine")]) == 2
        out, err = capsys.readouterr()
        assert not out and err.count("\n") == 1
        sentences.add(err)
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]
    (sentence,) = sentences
    return sentence


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "model-00001-of-00004.safetensors"]
)
def test_what_is_no_regular_file_is_neither_waited_for_nor_read(folder, capsys, name, kind):
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        (folder / name).mkdir()
    assert f"{name} is no regular file" in refusal(capsys, folder)


def test_a_folder_that_may_not_be_read_is_named(folder, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    assert "checkpoint cannot be read (Permission denied)" in refusal(capsys, folder)


def test_a_model_card_that_cannot_be_read_leaves_the_licence_unknown(folder):
    os.mkfifo(folder / "README.md")
    assert HuggingFaceCheckpoint(folder).licence == "unknown"


@pytest.mark.parametrize("content", ["{}", '{"model": {"type": "BPE"}}', '{"version": 5}'])
def test_a_tokenizer_that_cannot_be_loaded_is_refused_before_anything_is_built(folder, capsys, content):
    """An engine directory with it would be refused whenever it is used."""
    (folder / "tokenizer.json").write_text(content)
    assert "tokenizer.json is no tokenizer that can be loaded" in refusal(capsys, folder)


def test_a_chat_template_that_is_no_text_is_refused(folder, capsys):
    (folder / "chat_template.jinja").write_bytes(bytes(range(256)))
    assert "chat_template.jinja is not UTF-8 text" in refusal(capsys, folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("chat_template.jinja", "{% for %}"),
        ("chat_template.json", json.dumps({"chat_template": "{% for %}"})),
        ("tokenizer_config.json", json.dumps({"chat_template": [{"name": "default", "template": "{% for %}"}]})),
    ],
)
def test_a_chat_template_that_is_no_jinja_is_refused_with_its_file(folder, capsys, file, content):
    """An engine directory with it would be refused whenever it is used."""
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / file).write_text(content)
    sentence = refusal(capsys, folder)
    assert f"{folder / file}: the chat template is not valid Jinja (" in sentence and "end of statement" in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--workspace", "64"], "--workspace is given without --plan; add it"),
        (["--vision-precision", "fp32"], "vision precision is fp32, and no image tower is built; leave"),
        (["--vision-precision", "int8", "--text-only"], "vision precision is int8, and no image tower is built"),
    ],
    ids=" ".join,
)
def test_an_option_that_would_mean_nothing_is_refused(folder, capsys, options, sentence):
    assert sentence in refusal(capsys, folder, *options)


@pytest.mark.parametrize("shard", ["a\0b", "x" * 5000, "\ud800"], ids=["nul", "long", "half a character"])
def test_a_shard_of_an_impossible_name_is_refused(folder, capsys, shard):
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "weight_map": dict.fromkeys(content["weight_map"], shard)}))
    assert len(refusal(capsys, folder)) < 1300


@pytest.mark.parametrize(
    "place", ["/", "/dev/null", "/dev/null/engine", "/proc/engine", "x" * 300, "x/" * 3000 + "x", "a\0b"]
)
@pytest.mark.parametrize("flags", [[], ["--check"]], ids=["build", "check"])
def test_a_place_that_cannot_be_is_refused_in_a_sentence(folder, capsys, monkeypatch, place, flags):
    monkeypatch.chdir(folder.parent)
    assert main(["build", *flags, str(folder), place]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and err.endswith(".\n")
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


SOURCES = ["", "a\0b", "x" * 300, "x" * 5000, "x/" * 3000 + "x", "\udcff", "x" * 5000 + ".gguf"]


@pytest.mark.parametrize("source", SOURCES, ids=range(len(SOURCES)))
@pytest.mark.parametrize("flags", [[], ["--check"], ["--random-weights"]], ids=["build", "check", "random"])
def test_a_source_that_cannot_be_is_refused_in_a_sentence(tmp_path, capsys, monkeypatch, source, flags):
    monkeypatch.chdir(tmp_path)
    assert main(["build", *flags, source, str(tmp_path / "engine")]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and err.endswith(".\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["", "--check"], "OUT is empty"),
        ([""], "OUT is empty"),
        (["engine", "--seed", "3"], "without --random-weights"),
    ],
)
def test_arguments_that_nothing_is_made_of_are_refused(folder, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(folder.parent)
    assert main(["build", str(folder), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_folders_whose_names_are_no_text_are_served(tmp_path):
    """As a shell gives them: bytes that are not UTF-8 in the name of the checkpoint and of the engine directory."""
    place = tmp_path / "\udcff"
    shutil.copytree(TINY, place / "check\udcfe")
    for command in (
        ["build", place / "check\udcfe", place / "engine"],
        ["build", place / "check\udcfe", place / "engine"],
        ["info", place / "engine"],
    ):
        done = subprocess.run([sys.executable, "-m", "edgellm_ros.cli.main", *command], capture_output=True)
        assert done.returncode == 0, done.stderr
