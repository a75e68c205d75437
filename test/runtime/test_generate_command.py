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


@pytest.mark.parametrize("options", [(), ("--cache-mb", "0")], ids=["reuse", "none"])
def test_several_prompts_are_the_turns_of_one_chat(engine, capsys, options):
    prompts = ("--prompt", "the first of all questions", "--prompt", "and another")
    assert generate(engine, "--system", "be kind", *prompts, "--json", *options) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["text"] == second["text"] == TEXT and first["reused_tokens"] == 0
    known = first["input_ids"] + first["output_ids"]
    assert second["input_ids"][: len(known)] == known
    assert second["reused_tokens"] == (0 if options else (len(known) - 1) // 16 * 16)
    assert generate(engine, *prompts) == 0
    assert capsys.readouterr().out == f"{TEXT}\n{TEXT}\n"
    assert generate(engine, *prompts, "--no-chat-template") == 2 == generate(engine, *prompts, "--cache-mb", "-1")
    assert "--cache-mb is -1; want a whole number from 0." in capsys.readouterr().err


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
        (["--prompt", "hi", "--stop", ""], "stop_strings"),
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


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM"), (signal.SIGHUP, "ended by SIGHUP")],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_it_with_one_sentence_and_its_own_status(tmp_path, number, said):
    process = slow_process(tmp_path)
    assert process.stdout.read(3) == "abc"
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + number
    assert err == f"edgellm generate: {said}\n"


def test_a_closed_pipe_is_no_traceback(tmp_path):
    process = slow_process(tmp_path)
    assert process.stdout.read(3) == "abc"
    process.stdout.close()
    assert process.wait(WAIT) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


SCHEMA = {"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}


@pytest.mark.parametrize(
    ("option", "content", "valid"),
    [
        ("--json-schema", json.dumps(SCHEMA), lambda text: isinstance(json.loads(text)["open"], bool)),
        ("--grammar", 'root ::= "up" | "down"', ("up", "down").__contains__),
        ("--regex", None, ("a1", "b1").__contains__),
        ("--choice", None, ("[ab]1",).__contains__),
    ],
)
def test_an_answer_is_held_to_a_form(engine, tmp_path, capsys, option, content, valid):
    pytest.importorskip("llguidance")
    value = "[ab]1"
    if content is not None:
        (tmp_path / "form").write_text(content)
        value = str(tmp_path / "form")
    assert generate(engine, "--prompt", "hi", option, value) == 0
    assert valid(capsys.readouterr().out.strip())


def test_tool_calls_and_reasoning_are_printed_apart(tmp_path, capsys):
    answer = ["<think>", "hm", "</think>", "Well. ", '<tool_call>{"name": "grip", "arguments": {"n": 1}}</tool_call>']
    engine = write_fake_engine_directory(tmp_path / "engine", FakeScript(answers=[answer]))
    template = engine / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if tools %}{# <tool_call> #}{% endif %}")
    manifest = json.loads((engine / "manifest.json").read_text())
    manifest["files"][template.name] = template.stat().st_size
    (engine / "manifest.json").write_text(json.dumps(manifest))
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "grip"}]')
    arguments = (str(engine), "--prompt", "hi", "--thinking", "--tools", str(tools))
    assert generate(*arguments) == 0
    out, err = capsys.readouterr()
    assert out == 'Well. {"name": "grip", "arguments": {"n": 1}}\n\n' and err.startswith("hm")
    assert generate(*arguments, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["text"], report["reasoning"]) == ("Well. ", "hm")
    assert report["tool_calls"] == [{"id": "call00000", "name": "grip", "arguments": {"n": 1}}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--json-schema", "/nowhere"), "--json-schema /nowhere cannot be read"),
        (("--tools", "BAD"), "is not JSON"),
        (("--tools", "/nowhere"), "--tools /nowhere cannot be read (No such file or directory); check the path."),
        (("--tools", "OBJECT"), "is no list"),
        (("--regex", "("), "unclosed group"),
    ],
)
def test_bad_forms_and_tools_are_bad_input(engine, tmp_path, capsys, arguments, words):
    for name, content in (("BAD", "[1"), ("OBJECT", "{}")):
        (tmp_path / name).write_text(content)
    given = [str(tmp_path / argument) if argument in ("BAD", "OBJECT") else argument for argument in arguments]
    assert generate(engine, "--prompt", "hi", *given) == 2
    assert words in capsys.readouterr().err
