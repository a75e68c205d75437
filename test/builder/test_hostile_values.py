"""Whatever stands under a key of a checkpoint's JSON files, it is used or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgellm_ros.cli.main import main
from edgellm_ros.errors import EdgeLLMError

TINY = Path(__file__).parents[1] / "reference" / "tiny_llama"
ANYTHING = {
    "huge": 10**400,
    "nan": float("nan"), "infinite": float("inf"), "negative": -1, "none": None, "true": True,
    "text": "x", "half a character": "\ud800", "long": "x" * 100_000, "list": [], "lists": [[[]]], "texts": ["x"] * 1000,
    "object": {}, "scaling": {"rope_type": "linear", "factor": 10**400}, "method": {"quant_method": ["x" * 100_000]},
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
