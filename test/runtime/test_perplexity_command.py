"""``edgellm perplexity`` with texts and engines that nobody should give it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.errors import BackendError
from edgellm_ros.runtime.perplexity import score_tokens

pytestmark = pytest.mark.todays_graphs


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    return build_engine(
        write_random_llama_checkpoint(folder / "checkpoint"), folder / "engine", limits=BuilderLimits(1, 16, 64)
    )


def test_a_text_is_measured(engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("A gripper closes.\n" * 5, encoding="utf-8")
    assert main(["perplexity", str(engine), str(tmp_path / "text"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tokens"] == 5 * 18 - 1 and 1 < report["perplexity"] < 10000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("folder", "is not a regular file"),
        ("nothing", "cannot be read (No such file or directory)"),
        ("a\0b", "cannot be read (embedded null byte)"),
        ("x" * 5000, "cannot be read (File name too long)"),
        ("bytes", "is not UTF-8 text"),
        ("large", "bytes; want at most"),
        ("empty", "the text has 0 tokens"),
        ("letter", "the text has 1 tokens"),
    ],
)
def test_what_is_no_text_is_one_sentence(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("")
    (tmp_path / "letter").write_text("a")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    assert main(["perplexity", str(engine), str(tmp_path / text)]) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["perplexity", "generate"])
def test_a_policy_that_answers_nothing_says_so(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "text").write_text("hi there")
    shutil.copytree(engine, tmp_path / "policy")
    manifest = json.loads((engine / "manifest.json").read_text())
    manifest["files"] = {name: size for name, size in manifest["files"].items() if not name.startswith("llm.")}
    (tmp_path / "policy" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "policy" / "llm.onnx").unlink()
    (tmp_path / "policy" / "action").mkdir()
    arguments = [str(tmp_path / "text")] if command == "perplexity" else ["--prompt", "hi"]
    assert main([command, str(tmp_path / "policy"), *arguments]) == 2
    assert "use 'edgellm act'" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e5])
def test_logits_that_predict_nothing_are_no_perplexity(scale: float) -> None:
    class Executor:
        limits = BuilderLimits(1, 16, 64)
        score_chunk = 4

        def score(self, row: int, tokens: list[int], start: int) -> np.ndarray:
            with np.errstate(invalid="ignore"):
                return np.float32(scale) * np.arange(8, dtype=np.float32)[None].repeat(len(tokens), 0)

    with pytest.raises(BackendError, match="mean log loss"), np.errstate(invalid="ignore"):
        score_tokens(Executor(), [1, 2, 3])  # type: ignore[arg-type]
