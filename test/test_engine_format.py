"""Engine directories that somebody else wrote: sound ones open, all others become one sentence."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.cli.info import describe
from edgellm_ros.engine_format import BuilderLimits, EngineConfig, open_engine_directory
from edgellm_ros.engine_manifest import Manifest
from edgellm_ros.errors import BackendError, EdgeLLMError, EngineDirectoryError
from edgellm_ros.file_sample import file_sample
from edgellm_ros.json_values import read_json
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime

HUGE = 10**400
VALUES = [
    None, True, -2, 0, 1.5, 10**30, HUGE, float("nan"), float("inf"), "x", "\0", [], {}, ["x"], [None], [-2],
    [HUGE], [float("inf")], {"a": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", seed=3, num_hidden_layers=1)
    return build_engine(checkpoint, folder / "engine", limits=BuilderLimits(2, 32, 64))


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, of lists the first entry only."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(content, dict):
        inner = list(content.items())
    elif isinstance(content, list):
        inner = list(enumerate(content[:1]))
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def replaced(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    content = copy.deepcopy(content)
    where = content
    for key in place[:-1]:
        where = where[key]
    where[place[-1]] = value
    return content


def copy_with(source: Path, target: Path, name: str, content: bytes) -> Path:
    """The directory with other content in one file, whose size the manifest knows."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    manifest = json.loads((source / "manifest.json").read_text())
    manifest["files"][name] = len(content)
    manifest["samples"].pop(name, None)
    for changed, data in ((name, content), ("manifest.json", json.dumps(manifest).encode())):
        (target / changed).unlink(missing_ok=True)
        (target / changed).write_bytes(data)
    return target


@pytest.mark.parametrize("kind", [EngineConfig, Manifest])
def test_any_value_in_any_place_is_read_or_becomes_a_sentence(llama: Path, kind: Any) -> None:
    content = read_json(llama / ("config.json" if kind is EngineConfig else "manifest.json"))
    refused = 0
    for place in places(content):
        for value in VALUES:
            changed = replaced(content, place, value)
            if not isinstance(changed, dict):
                continue
            try:
                kind.from_json(changed).to_json()
            except EngineDirectoryError as error:
                refused += 1
                assert "\n" not in str(error) and str(error).endswith("."), (place, value)
                assert len(str(error)) < 300
    assert refused > 100


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("vocab_size",), 300, "'logits' of the graph holds 320 numbers a position and config.json wants 300"),
        (("vocab_size",), 321, "'logits' of the graph holds 320"),
        (("hidden_size",), 40, "'inputs_embeds' of the graph holds 48"),
        (("rope", "default", "inverse_frequency"), [1.0], "'rope_cos_default' of the graph holds 8"),
        (("kv_layer_configs", 0, "num_kv_heads"), 7, "config.json wants"),
        (("kv_cache_dtype",), "float17", "kv_cache_dtype"),
    ],
)  # fmt: skip
def test_a_configuration_that_disagrees_with_the_graph_is_refused_while_loading(
    llama: Path, tmp_path: Path, place: tuple[Any, ...], value: Any, said: str
) -> None:
    content = json.dumps(replaced(read_json(llama / "config.json"), place, value)).encode()
    broken = copy_with(llama, tmp_path / "broken", "config.json", content)
    with pytest.raises((EngineDirectoryError, BackendError), match=said):
        LLMInferenceRuntime(broken, threads=1)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_kv_heads", float("inf"), "num_kv_heads is inf; want a whole number"),
        ("head_dim", HUGE, "head_dim is 1000"),
        ("num_kv_heads", 0, "num_kv_heads is 0"),
    ],
)
def test_the_offending_number_is_named(llama: Path, name: str, value: Any, said: str) -> None:
    content = replaced(read_json(llama / "config.json"), ("kv_layer_configs", 0, name), value)
    with pytest.raises(EngineDirectoryError, match=said):
        EngineConfig.from_json(content)


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe{", b"null", b"1" * 10_000, b"{} {}", b"\0" * 64],
    ids=["empty", "cut", "deep list", "deep object", "not UTF-8", "null", "long number", "two values", "zeros"],
)
def test_files_that_are_no_json_object_are_named(llama: Path, tmp_path: Path, name: str, content: bytes) -> None:
    broken = copy_with(llama, tmp_path / "broken", "config.json", content if name == "config.json" else b"{}")
    if name == "manifest.json":
        (broken / name).write_bytes(content)
    with pytest.raises(EngineDirectoryError, match=name) as caught:
        open_engine_directory(broken)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "tokenizer.json", "embedding.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "directory", "dangling link", "link to itself"])
def test_what_is_not_a_file_is_refused_at_once(llama: Path, tmp_path: Path, name: str, kind: str) -> None:
    broken = copy_with(llama, tmp_path / "broken", "notes.txt", b"")
    (broken / name).unlink()
    if kind == "pipe":
        os.mkfifo(broken / name)
    elif kind == "directory":
        (broken / name).mkdir()
    else:
        (broken / name).symlink_to(broken / (name if kind == "link to itself" else "nothing"))
    for listed in (True, False):  # a file that the manifest leaves out is opened all the same
        if name != "manifest.json":
            manifest = json.loads((llama / "manifest.json").read_text())
            if not listed:
                del manifest["files"][name]
            (broken / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(EdgeLLMError, match=name.split(".")[0]):
            LLMInferenceRuntime(broken, threads=1)


@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 3000, "\0", "/proc/self/mem/x", ""])
def test_a_path_that_the_system_refuses_is_one_sentence(path: str) -> None:
    with pytest.raises(EngineDirectoryError) as caught:
        open_engine_directory(path)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["x" * 5000, "../config.json", "/etc/passwd", "\0", ""])
def test_file_names_of_a_manifest_stay_inside(llama: Path, tmp_path: Path, name: str) -> None:
    broken = copy_with(llama, tmp_path / "broken", "notes.txt", b"")
    manifest = json.loads((llama / "manifest.json").read_text())
    manifest["files"] = {name: 0}
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineDirectoryError) as caught:
        open_engine_directory(broken)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["config.json", "llm.onnx", "llm.onnx.data", "embedding.safetensors"])
@pytest.mark.parametrize("listed", [True, False], ids=["size known", "size adjusted"])
def test_a_file_cut_anywhere_is_refused(llama: Path, tmp_path: Path, name: str, listed: bool) -> None:
    whole = (llama / name).read_bytes()
    for index, cut in enumerate((0, 1, 7, 8, len(whole) // 3, len(whole) // 2, len(whole) - 1)):
        broken = copy_with(llama, tmp_path / str(index), name, whole[:cut])
        if listed:
            (broken / "manifest.json").write_bytes((llama / "manifest.json").read_bytes())
        with pytest.raises(EdgeLLMError) as caught:
            LLMInferenceRuntime(broken, threads=1)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 800


@pytest.mark.parametrize("name", ["llm.onnx.data", "embedding.safetensors", "tokenizer.json", "config.json"])
def test_a_file_of_another_model_is_refused(llama: Path, tmp_path: Path, name: str) -> None:
    whole = (llama / name).read_bytes()
    other = whole[:-40] + b"7" * 20 + whole[-20:]
    swapped = copy_with(llama, tmp_path / "swapped", name, other)
    (swapped / "manifest.json").write_bytes((llama / "manifest.json").read_bytes())
    with pytest.raises(EngineDirectoryError, match=rf"{name} is not what was built .* build it again\.$"):
        LLMInferenceRuntime(swapped, threads=1)


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_a_sample_sees_changes_at_both_ends_and_of_any_long_part(tmp_path: Path, size: int) -> None:
    content = bytearray(np.random.default_rng(1).bytes(size))
    (tmp_path / "a").write_bytes(content)
    found = {file_sample(tmp_path / "a")}
    for start, length in ((0, 1), (size - 1, 1), (size // 3, size // 100)):
        changed = bytearray(content)
        changed[max(0, start) : start + length] = bytes(255 - byte for byte in content[max(0, start) : start + length])
        (tmp_path / "a").write_bytes(changed)
        found.add(file_sample(tmp_path / "a"))
    assert len(found) == len({bytes(content), *([b"a"] if size else []), *([b"b", b"c"] if size > 100 else [])})


HEADERS = {
    "deep": "[" * 100000,
    "twice": '{"embedding": {}, "embedding": {}}',
    "negative shape": '{"embedding": {"dtype": "F32", "shape": [-320, -48], "data_offsets": [0, 61440]}}',
    "endless shape": '{"embedding": {"dtype": "F32", "shape": [Infinity, 48], "data_offsets": [0, 61440]}}',
    "shape as text": '{"embedding": {"dtype": "F32", "shape": ["320", "48"], "data_offsets": [0, 61440]}}',
    "shape of fractions": '{"embedding": {"dtype": "F32", "shape": [320.5, 48], "data_offsets": [0, 61440]}}',
    "endless offset": '{"embedding": {"dtype": "F32", "shape": [320, 48], "data_offsets": [0, Infinity]}}',
    "offset within a number": '{"embedding": {"dtype": "F32", "shape": [320, 48], "data_offsets": [1, 61441]}}',
    "turned": '{"embedding": {"dtype": "F32", "shape": [48, 320], "data_offsets": [0, 61440]}}',
    "flat": '{"embedding": {"dtype": "F32", "shape": [15360], "data_offsets": [0, 61440]}}',
    "no text": b"\xff\xfe",
    "another type": '{"embedding": {"dtype": "I32", "shape": [320, 48], "data_offsets": [0, 61440]}}',
}


@pytest.mark.todays_graphs
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_an_embedding_with_a_strange_header_is_refused(llama: Path, tmp_path: Path, header: str | bytes) -> None:
    whole = (llama / "embedding.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    text = (header if isinstance(header, bytes) else header.encode()).ljust(length)
    content = len(text).to_bytes(8, "little") + text + whole[8 + length :]
    broken = copy_with(llama, tmp_path / "broken", "embedding.safetensors", content)
    with pytest.raises(EdgeLLMError) as caught:
        LLMInferenceRuntime(broken, threads=1)
    assert "embedding.safetensors" in str(caught.value) or len(text) > length
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_key_that_occurs_twice_is_refused(llama: Path, tmp_path: Path, name: str) -> None:
    content = (llama / name).read_text().rstrip().removesuffix("}") + ', "twice": 1, "twice": 2}'
    broken = copy_with(llama, tmp_path / "broken", name, content.encode())
    with pytest.raises(EngineDirectoryError, match=f"{name} is not valid JSON .the key 'twice' occurs twice"):
        LLMInferenceRuntime(broken, threads=1)
    (broken / "manifest.json").write_text('{"format_version": 1, "format_version": 1}')
    with pytest.raises(EngineDirectoryError, match=r"the key 'format_version' occurs twice"):
        open_engine_directory(broken)


def test_links_to_files_elsewhere_are_fine(llama: Path, tmp_path: Path) -> None:
    linked = copy_with(llama, tmp_path / "linked", "notes.txt", b"")
    with LLMInferenceRuntime(linked, threads=1) as runtime:
        runtime.warm_up(1)
    assert "llama" in describe(open_engine_directory(linked))


@pytest.mark.parametrize("place", [("embedding_scale",), ("rope", "default", "scale")], ids=str)
@pytest.mark.parametrize("value", [0, -1.0])
def test_a_scale_that_takes_all_meaning_is_refused(llama: Path, place: tuple[Any, ...], value: float) -> None:
    content = replaced(read_json(llama / "config.json"), place, value)
    with pytest.raises(EngineDirectoryError, match="want a number above 0"):
        EngineConfig.from_json(content)


@pytest.mark.parametrize("peak", ["x", {}, [None], HUGE, float("nan"), -1, True])
def test_a_fake_script_with_a_bad_peak_is_refused(peak: Any) -> None:
    with pytest.raises(EngineDirectoryError, match="peak"):
        FakeScript(peak=peak)


def test_a_tokenizer_of_another_kind_is_refused(llama: Path, tmp_path: Path) -> None:
    whole = json.loads((llama / "tokenizer.json").read_text())
    index = 0
    for place in places(whole):
        if len(place) > 2:
            continue
        for value in (None, [], {}, "x", -1):
            index += 1
            content = json.dumps(replaced(whole, place, value)).encode()
            broken = copy_with(llama, tmp_path / str(index), "tokenizer.json", content)
            try:
                with LLMInferenceRuntime(broken, threads=1):
                    pass
            except EdgeLLMError as error:
                assert "\n" not in str(error), (place, value)


def test_the_fake_directory_opens(tmp_path: Path) -> None:
    assert open_engine_directory(write_fake_engine_directory(tmp_path / "fake", FakeScript())).config.model
