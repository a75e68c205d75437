from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from runtime_helpers import WAIT

from edgellm_ros.backends.fake import FakeScript, Fault, write_fake_engine_directory
from edgellm_ros.cli.main import main

TEXT = "Hello wörld 世. STOP and more"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return str(write_fake_engine_directory(tmp_path_factory.mktemp("cli") / "engine", FakeScript(answers=[TEXT])))


def generate(*arguments: str) -> int:
    return main(["generate", *arguments])


def test_text_goes_to_standard_output_and_figures_to_standard_error(engine, capsys):
    assert generate(engine, "--prompt", "hi") == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    assert "tokens (end_id)" in err and "tokens/s" in err


def test_one_json_object(engine, capsys):
    assert generate(engine, "--prompt", "hi", "--stop", "STOP", "--json", "--logprobs", "2", "--seed", "7") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["text"] == "Hello wörld 世. " and report["finish_reason"] == "stop_words" and report["seed"] == 7
    assert bytes(report["output_ids"]).decode() == "Hello wörld 世. STOP"
    assert [rows[0]["id"] for rows in report["logprobs"]] == report["output_ids"]
    assert all(len(rows) == 3 for rows in report["logprobs"])
    assert report["timings"]["time_to_first_token"] > 0 and report["timings"]["tokens_per_second"] > 0
    assert bytes(report["input_ids"][11:13]) == b"ha" or 104 in report["input_ids"]


def test_a_profile_tells_times_counts_and_memory(engine, capsys):
    assert generate(engine, "--prompt", "hi", "--json", "--profile") == 0
    report = json.loads(capsys.readouterr().out)
    profile, tokens = report["profile"], len(report["output_ids"])
    assert profile["generation"] == {"generated_tokens": tokens, "steps": tokens - 1}
    assert profile["prefill"] == {"computed_tokens": len(report["input_ids"]), "reused_tokens": 0}
    assert profile["stages"]["llm_generation"]["count"] == tokens - 1
    stage = profile["stages"]["llm_prefill"]
    assert stage["count"] == 1 and 0 < stage["p50_ms"] <= stage["p99_ms"] <= stage["total_ms"]
    assert profile["memory"]["peak_cpu_memory_bytes"] > profile["memory"]["peak_backend_memory_bytes"] > 0
    assert generate(engine, "--prompt", "hi", "--profile") == 2


def test_ids_bypass_template_and_tokenizer(engine, capsys):
    assert generate(engine, "--input-ids", "1, 2,3", "--json", "--max-tokens", "3") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["input_ids"] == [1, 2, 3] and len(report["output_ids"]) == 3


def test_no_chat_template_and_system_and_ignore_eos(engine, capsys):
    assert generate(engine, "--prompt", "ab", "--no-chat-template", "--json", "--max-tokens", "1") == 0
    assert json.loads(capsys.readouterr().out)["input_ids"] == [97, 98]
    assert (
        generate(engine, "--prompt", "ab", "--system", "be kind", "--json", "--ignore-eos", "--max-tokens", "60") == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert len(report["output_ids"]) == 60 and b"be kind" in bytes(i for i in report["input_ids"] if i < 256)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompt", " "], "empty or blank"),
        (["--prompt", "x" * 5000], "EDGELLM_INPUT_TOO_LONG"),
        (["--prompt", "hi", "--temperature", "nan"], "temperature"),
        (["--prompt", "hi", "--top-p", "0"], "top_p"),
        (["--prompt", "hi", "--max-tokens", "0"], "max_generate_length"),
        (["--prompt", "hi", "--seed", "-1"], "sampling_seed"),
        (["--prompt", "hi", "--stop", ""], "stop string"),
        (["--prompt", "hi", "--seed", "9" * 400], "sampling_seed"),
        (["--prompt", "hi", "--top-k", "9" * 400], "top_k"),
        (["--prompt", "hi", "--max-tokens", "9" * 400], "max_generate_length"),
        (["--input-ids", "9" * 400], "outside"),
        (["--prompt", "hi", "--logprobs", "3"], "--json"),
        (["--input-ids", "1,x"], "--input-ids"),
        (["--input-ids", ","], "--input-ids is empty"),
        (["--input-ids", "99999"], "outside"),
        (["--prompt", "hi", "--backend", "quantum"], "quantum"),
        (["--prompt", "hi", "--threads", "-2"], "threads"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(engine, capsys, arguments, sentence):
    assert generate(engine, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and sentence in err and err.count("\n") == 1


def test_a_directory_that_is_none(tmp_path, capsys):
    assert generate(str(tmp_path / "no"), "--prompt", "hi") == 2
    assert "holds nothing" in capsys.readouterr().err


def test_a_failing_engine_is_exit_code_1(tmp_path, capsys):
    script = FakeScript(answers=["abcdef"], fault=Fault.RAISE, fault_step=3)
    path = str(write_fake_engine_directory(tmp_path / "engine", script))
    assert generate(path, "--prompt", "hi") == 1
    out, err = capsys.readouterr()
    assert out == "abc\n" and "told to fail" in err


def slow_process(tmp_path, **options) -> subprocess.Popen:
    script = FakeScript(answers=["abcdefghij" * 100], step_latency=0.01)
    path = write_fake_engine_directory(tmp_path / "engine", script)
    command = [sys.executable, "-m", "edgellm_ros.cli.main", "generate", str(path), "--prompt", "hi"]
    return subprocess.Popen(
        [*command, "--max-tokens", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **options,
    )  # fmt: skip


def test_interrupt_ends_cleanly(tmp_path):
    process = slow_process(tmp_path)
    assert process.stdout.read(3) == "abc"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert err == "edgellm generate: interrupted\n"


def test_a_closed_pipe_is_no_traceback(tmp_path):
    process = slow_process(tmp_path)
    assert process.stdout.read(3) == "abc"
    process.stdout.close()
    assert process.wait(WAIT) == 141
    assert process.stderr.read() == ""
    process.stderr.close()
