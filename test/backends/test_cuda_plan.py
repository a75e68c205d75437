"""TensorRT plans on a pretended GPU: what is compiled, what is checked at load, and what is said when it differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import FakeDriver
from fake_libraries import fake_tensorrt
from pretend_gpu import compile_pretended, pretend_backend, pretend_device

from edgellm_ros.backends.cuda.memory_check import check_memory, needed_bytes
from edgellm_ros.backends.cuda.tensorrt_api import TensorRT
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import BackendError, CheckpointError

pytest.importorskip("onnxruntime")

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.plan_profiles import profile_ranges
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan
from edgellm_ros.cli.main import main

LIMITS = BuilderLimits(3, 48, 160)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_llama_checkpoint(tmp_path_factory.mktemp("plan") / "checkpoint", hidden_size=64, seed=1)


@pytest.fixture
def directory(checkpoint: Path, tmp_path: Path) -> Path:
    return build_engine(checkpoint, tmp_path / "engine", limits=LIMITS, lowering="tensorrt_legacy")


def open_plan(directory: Path, version: str = "10.3.0", driver: FakeDriver | None = None) -> None:
    backend = pretend_backend("tensorrt", version, driver=driver)
    try:
        backend.open_engine(directory)
    finally:
        backend.close()


@pytest.mark.parametrize("version", ["8.5.3.1", "10.3.0"])
def test_a_plan_has_a_profile_for_prompts_and_one_for_steps(directory: Path, version: str) -> None:
    module = compile_pretended(directory, version, PlanOptions(workspace=64 << 20, library_tactics=False))
    (network, config) = module.built[0]
    prefill, decode = (profile.shapes for profile in config.profiles)
    assert prefill["inputs_embeds"] == ((1, 1, 64), (1, 48, 64), (3, 48, 64))
    assert decode["inputs_embeds"] == ((1, 1, 64), (1, 1, 64), (3, 1, 64))
    assert prefill["past_key_0"][0][:2] == (1, 1) and prefill["past_key_0"][2][:2] == (160, 3)
    assert decode["last_token_index"] == ((1, 1), (1, 1), (3, 1))
    assert "tf32" not in config.flags and config.limits == {"workspace": 64 << 20} and config.sources == 0
    assert network.flags == (2 if version.startswith("10") else 1)
    info = json.loads((directory / "llm.engine.json").read_text())
    assert info["tensorrt"] == version and info["architecture"] == "sm_90" and info["precision"] == "fp32"
    open_plan(directory, version)


@pytest.mark.parametrize(
    ("precision", "version", "flags", "asked"),
    [
        ("fp32", "8.5.3.1", 1, set()),
        ("fp16", "8.5.3.1", 1, {"fp16"}),
        ("fp16", "10.3.0", 2, set()),
        ("bf16", "10.3.0", 2, set()),
    ],
)
def test_the_graph_decides_the_types_where_it_can(
    checkpoint: Path, tmp_path: Path, precision: str, version: str, flags: int, asked: set[str]
) -> None:
    made = build_engine(checkpoint, tmp_path / "engine", limits=LIMITS, lowering="tensorrt_legacy", precision=precision)
    (network, config) = compile_pretended(made, version).built[0]
    assert network.flags == flags and config.flags == asked


def test_a_precision_that_the_version_lacks_is_refused_in_a_sentence(checkpoint: Path, tmp_path: Path) -> None:
    made = build_engine(checkpoint, tmp_path / "engine", limits=LIMITS, lowering="tensorrt_legacy", precision="bf16")
    with pytest.raises(CheckpointError, match=r"'bf16'; TensorRT 8\.5\.3\.1 has no such numbers.*--precision fp16"):
        compile_pretended(made, "8.5.3.1")


def test_a_plan_that_cannot_be_is_refused_before_anything_is_built(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = fake_tensorrt(FakeDriver(), "8.5.3.1")
    monkeypatch.setattr("edgellm_ros.builder.tensorrt_build.TensorRT", lambda: TensorRT(module))
    for options, sentence in (
        (["--lowering", "tensorrt_legacy", "--precision", "bf16"], "has no such numbers"),
        (["--lowering", "tensorrt", "--precision", "int4"], "wants TensorRT 10.15"),
        (["--precision", "fp16"], "lowering 'onnxruntime', which has none"),
    ):
        assert main(["build", str(checkpoint), str(tmp_path / "engine"), "--plan", *options]) != 0
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    ("lowering", "precision"), [("onnxruntime", "bf16"), ("tensorrt_legacy", "int8"), ("tensorrt_legacy", "int4")]
)
def test_a_precision_that_a_lowering_lacks_is_refused_with_those_it_has(
    checkpoint: Path, tmp_path: Path, lowering: str, precision: str
) -> None:
    with pytest.raises(CheckpointError, match=f"precision is '{precision}'; the lowering {lowering} has fp32, fp16"):
        build_engine(checkpoint, tmp_path / "engine", limits=LIMITS, lowering=lowering, precision=precision)
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_attention_of_a_modern_plan_may_be_built_of_parts(checkpoint: Path, tmp_path: Path, precision: str) -> None:
    made = build_engine(checkpoint, tmp_path / "engine", limits=LIMITS, lowering="tensorrt", precision=precision)
    (network, _) = compile_pretended(made, "10.15.0").built[0]
    allowed = [layer.attention.decomposable for layer in network.layers if layer.type == "attention output"]
    assert allowed and all(allowed)


def test_an_equal_plan_is_left_and_the_timing_cache_is_used_again(directory: Path) -> None:
    compile_pretended(directory)
    assert (directory / "llm.timing.cache").read_bytes() == b"timings"
    assert not compile_pretended(directory).built
    (directory / "llm.engine").unlink()
    (_, config) = compile_pretended(directory).built[0]
    assert config.cache.content == b"timings"
    (directory / "llm.engine").unlink()
    (directory / "llm.timing.cache").write_bytes(b"of another GPU")
    (_, config) = compile_pretended(directory).built[0]
    assert config.cache.content == b""


@pytest.mark.parametrize("version", ["8.5.3.1", "10.3.0"])
def test_progress_is_told(directory: Path, version: str) -> None:
    told: list[str] = []
    driver = FakeDriver()
    device = pretend_device(driver)
    api = TensorRT(fake_tensorrt(driver, version))
    compile_plan(directory, progress=lambda what, seconds: told.append(what), api=api, device=device)
    assert told[0] == "reading the graph" and told[-1] == "writing the plan"
    assert ("compiling the plan: tactics 1 of 2" in told) == version.startswith("10")
    device.close()


def rewrite(name: str, value: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "llm.engine.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))

    return change


def cut(directory: Path) -> None:
    path = directory / "llm.engine"
    path.write_bytes(path.read_bytes()[:-9])


def damage(directory: Path) -> None:
    path = directory / "llm.engine"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (rewrite("tensorrt", "10.13.0"), "compiled by TensorRT 10.13.0; this machine has 10.3.0"),
        (rewrite("architecture", "sm_87"), r"compiled for Pretend GPU \(sm_87\); this GPU is Pretend GPU \(sm_90\)"),
        (cut, "bytes; its description wants"),
        (damage, "is damaged"),
        (rewrite("graph_sha256", "0" * 64), "compiled from another llm.onnx"),
        (rewrite("format_version", 9), "format_version 9; this version reads 1"),
        (rewrite("unknown", 1), "other keys"),
        (lambda directory: (directory / "llm.engine.json").unlink(), "llm.engine.json cannot be read"),
        (lambda directory: (directory / "llm.engine").unlink(), "llm.engine is missing"),
    ],
    ids=["version", "gpu", "truncated", "damaged", "graph", "format", "keys", "no description", "no plan"],
)
def test_a_plan_that_does_not_fit_is_refused_with_what_differs(
    directory: Path, change: Callable[[Path], Any], sentence: str
) -> None:
    compile_pretended(directory)
    change(directory)
    with pytest.raises(BackendError, match=sentence + ".*compile it again with 'edgellm build .* --plan'"):
        open_plan(directory)


def test_what_the_library_says_of_a_plan_ends_the_sentence(directory: Path) -> None:
    compile_pretended(directory)
    plan = directory / "llm.engine"
    plan.write_bytes(b"nonsense")
    from edgellm_ros.backends.cuda.plan_file import file_digest

    rewrite("plan_bytes", 8)(directory)
    rewrite("plan_sha256", file_digest(plan))(directory)
    with pytest.raises(BackendError, match=r"TensorRT 10\.3\.0 does not load the plan: the plan is of another kind"):
        open_plan(directory)


def test_a_call_beyond_the_profiles_says_what_the_plan_takes(directory: Path) -> None:
    compile_pretended(directory)
    backend = pretend_backend("tensorrt")
    engine = backend.open_engine(directory)
    from edgellm_ros.backends.base import DataType

    cache = backend.allocate_kv_cache(engine.cache_layout, 4, 160)
    engine.bind_cache(cache)
    shapes = {}
    for name, spec in {**engine.inputs, **engine.outputs}.items():
        free = iter((4, 1))
        shapes[name] = tuple(next(free) if size == -1 else size for size in spec.shape)
        engine.bind(name, backend.allocate(shapes[name], DataType(spec.dtype)))
    with pytest.raises(BackendError, match=r"run with shape \(4, .*; the plan takes .* to \(3, .*larger limits"):
        engine.run(shapes)
    backend.close()


@pytest.mark.parametrize(
    ("lowering", "version", "sentence"),
    [
        (
            "onnxruntime",
            "10.3.0",
            "lowering 'onnxruntime', which has none; want --lowering tensorrt or tensorrt_legacy",
        ),
        ("tensorrt", "10.3.0", r"wants TensorRT 10.15 or newer; 10.3.0 is installed: .*tensorrt_legacy"),
        ("tensorrt", "8.5.3.1", "wants TensorRT 10.15"),
    ],
)
def test_lowerings_without_a_plan_here_are_refused(
    checkpoint: Path, tmp_path: Path, lowering: str, version: str, sentence: str
) -> None:
    path = build_engine(checkpoint, tmp_path / "engine", limits=LIMITS, lowering=lowering)
    with pytest.raises(CheckpointError, match=sentence):
        compile_pretended(path, version)


@pytest.mark.parametrize("version", ["7.2.3", "9.1.0", "10.0.1"])
def test_versions_that_are_not_supported_are_refused(version: str) -> None:
    with pytest.raises(BackendError, match=r"want 10\.3 or newer"):
        TensorRT(fake_tensorrt(FakeDriver(), version))


def test_a_graph_that_the_importer_refuses_is_told_in_its_words(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver()
    module = fake_tensorrt(driver)
    monkeypatch.setattr(module.OnnxParser, "parse_from_file", lambda self, path: False)
    device = pretend_device(driver)
    with pytest.raises(BackendError, match=r"does not read .*llm\.onnx: node 7: no importer"):
        compile_plan(directory, api=TensorRT(module), device=device)
    assert not list(directory.glob(".llm*")) and not (directory / "llm.engine").exists()
    device.close()


@pytest.mark.parametrize("workspace", [0, 1.5, True, 1 << 50])
def test_a_workspace_out_of_range_is_refused(workspace: Any) -> None:
    with pytest.raises(CheckpointError, match="workspace is"):
        PlanOptions(workspace=workspace)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [("token_type", (-1,), "none that this version compiles"), ("past_length", (-1, 4), "has 2 dimensions; want 1"),
     ("inputs_embeds", (-1, -1, -1), "varies in width")],
)  # fmt: skip
def test_an_input_of_unknown_shape_is_refused(name: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        profile_ranges(name, shape, LIMITS, "decode")


# ---- memory, before anything is loaded


def test_a_directory_that_does_not_fit_is_refused_with_how_much_is_missing(directory: Path) -> None:
    compile_pretended(directory)
    needed = needed_bytes(open_engine_directory(directory), "tensorrt")
    assert needed["weights"] == (directory / "llm.engine").stat().st_size
    config = open_engine_directory(directory).config
    assert needed["caches"] == 3 * 160 * 4 * sum(2 * heads * size for heads, size in config.kv_layers)
    driver = FakeDriver(memory=sum(needed.values()) - 30_000_000)
    device = pretend_device(driver)
    with pytest.raises(BackendError, match=r"out of memory: .* needs .* MB on the GPU .*, 3[0-9] MB too little"):
        check_memory(device, directory, "tensorrt")
    before = driver.used
    with pytest.raises(BackendError, match="too little"):
        open_plan(directory, driver=driver)
    assert driver.used <= before
    device.close()


def test_a_tied_head_counts_twice_where_the_graph_holds_the_weights(directory: Path) -> None:
    found = open_engine_directory(directory)
    tied = bool(found.config.extra.get("tie_word_embeddings"))
    needed = needed_bytes(found, "onnxruntime")
    files = found.manifest.files
    own = files["llm.onnx"] + files["llm.onnx.data"]
    assert needed["weights"] == own + (files["embedding.safetensors"] if tied else 0)
