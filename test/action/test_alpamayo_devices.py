"""Alpamayo-R1 on a pretended GPU and a real one: what its reasoning leaves is handed on without leaving the device."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from fake_cuda import FakeDriver
from policy_checkpoints import reference, scaled_error
from pretend_gpu import compile_pretended, pretend_backend

from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.action.reasoning_engines import ROOM_STEP
from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.backends.cuda.kv_cache import CUDAKVCache
from edgellm_ros.backends.cuda.memory_check import needed_bytes
from edgellm_ros.backends.cuda.plan_file import plan_of
from edgellm_ros.backends.registry import open_backend
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import EdgeLLMError, PolicyError

FOLDER, ARRAYS, CASES = reference("alpamayo")
VERSIONS = {"tensorrt": "10.15.0", "tensorrt_legacy": "8.5.3.1"}
SEEN = Observation(
    dict(zip(CASES["all"]["cameras"], ARRAYS["images"], strict=True)), np.zeros(0), 7, history=ARRAYS["history"]
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Engine directories by lowering and precision, made when asked for."""
    made = {}

    def get(lowering="tensorrt_legacy", precision="fp32"):
        key = lowering, precision
        if key not in made:
            path = tmp_path_factory.mktemp("_".join(key)) / "engine"
            made[key] = build_engine(FOLDER, path, lowering=lowering, precision=precision)
        return made[key]

    return get


def plan(runtime, **options):
    """The chunk of the reference's observation, with the likeliest words."""
    runtime.reasoning_sampling = SamplingRow()
    options = {"noise": ARRAYS["all_noise"], "denoise_steps": CASES["all"]["steps"], **options}
    return runtime.compute(SEEN, "", **options)


def opened(directory, library="onnxruntime", lowering="tensorrt_legacy", **options):
    return PolicyRuntime(directory, backend=pretend_backend(library, VERSIONS[lowering], **options))


@pytest.mark.parametrize(
    ("library", "lowering"),
    [("onnxruntime", "tensorrt_legacy"), ("tensorrt", "tensorrt"), ("tensorrt", "tensorrt_legacy")],
)
def test_waypoints_are_those_of_the_written_out_mathematics(engines, library, lowering):
    directory = engines(lowering)
    if library == "tensorrt":
        compile_pretended(directory, VERSIONS[lowering])
        assert all(plan_of(graph).is_file() for graph in directory.rglob("*.onnx"))
    with opened(directory, library, lowering) as runtime:
        for _ in range(3):  # the third is replayed
            assert scaled_error(plan(runtime).normalised, ARRAYS["all_normalised"]) < 1e-5
        assert runtime.recordings.counts == {"denoise": 1} and not runtime.recordings.failures


def test_half_precision_in_the_layout_of_the_cpu_stays_near(engines):
    with opened(engines("onnxruntime", "fp16")) as runtime:
        first, *others = (plan(runtime).normalised for _ in range(3))
        assert all(np.array_equal(other, first) for other in others) and runtime.recordings.counts["denoise"] == 1
    found, wanted = first.ravel().astype(np.float64), ARRAYS["all_normalised"].ravel()
    assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.999


def test_recorded_plans_are_the_bytes_of_others(engines):
    with opened(engines()) as runtime, opened(engines(), records=False) as plain:
        for _ in range(4):
            ours, wanted = plan(runtime), plan(plain)
            assert ours.normalised.tobytes() == wanted.normalised.tobytes() and ours.reasoning == wanted.reasoning
        assert runtime.recordings.counts["denoise"] == 1 and not plain.recordings.counts


def test_keys_and_values_never_reach_the_host(engines, monkeypatch):
    """Nor are they copied from there: what crosses is smaller than those of one layer."""
    monkeypatch.setattr(CUDAKVCache, "export_block", lambda *given: pytest.fail("a block was exported"))
    driver = FakeDriver()
    with opened(engines(), driver=driver) as runtime:
        plan(runtime)
        layer = runtime.prefix_length * 2 * 16 * 4  # of keys alone
        crossing, inner = [], runtime._engines._keep

        def watched(*given):
            for name in ("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"):
                call = getattr(driver, name)
                setattr(driver, name, lambda *asked, call=call: crossing.append(asked[2]) or call(*asked))
            inner(*given)

        monkeypatch.setattr(runtime._engines, "_keep", watched)
        before = len(driver.launches)
        assert scaled_error(plan(runtime).normalised, ARRAYS["all_normalised"]) < 1e-5
        assert driver.launches[before:].count("lay_out_32") == 1
        assert crossing and max(crossing) < layer / 4, crossing


def test_pictures_go_to_a_gpu_as_they_are(engines, monkeypatch):
    monkeypatch.setattr("edgellm_ros.vision.processor.carry_out", lambda *given: pytest.fail("resized on the host"))
    driver = FakeDriver()
    with opened(engines(), driver=driver) as runtime:
        assert scaled_error(plan(runtime).normalised, ARRAYS["all_normalised"]) < 1e-5
        pictures = {image.tobytes() for camera in ARRAYS["images"] for image in camera}
        assert sum(name.startswith("rearrange") for name in driver.launches) >= len(pictures)
        before = len(driver.launches)
        plan(runtime)
        assert not any(name.startswith("rearrange") for name in driver.launches[before:])  # they were seen before


def test_reasonings_of_other_lengths_share_what_is_recorded_and_memory_is_flat(engines):
    driver = FakeDriver()
    with opened(engines(), driver=driver) as runtime, PolicyRuntime(engines(), backend="onnxruntime", threads=1) as cpu:
        for opened_runtime in (runtime, cpu):
            opened_runtime._engines._ends_of_text = set()  # so that each says as much as it may
        lengths, marks = [], []
        for index, tokens in enumerate((40, 5, 33, 20, 40, 0, 11, 5)):
            found = []
            for opened_runtime in (runtime, cpu):
                opened_runtime.reasoning_tokens = tokens
                found.append(plan(opened_runtime))
            assert scaled_error(found[0].normalised, found[1].normalised) < 1e-5
            assert found[0].reasoning == found[1].reasoning and bool(found[0].reasoning) == bool(tokens)
            lengths.append(runtime.prefix_length)
            if index in (4, 7):
                marks.append((driver.used, driver.events, len(driver.pinned)))
        rooms = {-(-length // ROOM_STEP) * ROOM_STEP for length in lengths}
        assert len(set(lengths)) == 6 and runtime.recordings.counts["denoise"] <= len(rooms) < 3
        assert marks[0] == marks[1]


def test_what_lies_behind_the_prefix_is_not_seen(engines, monkeypatch):
    from edgellm_ros.backends.cpu_kv_cache import CPUKVCache

    inner = CPUKVCache.copy_out

    def soiled(self, row, length, tensors):
        inner(self, row, length, tensors)
        for index, tensor in enumerate(tensors):
            (tensor.array if index % 2 else tensor.array.swapaxes(2, 3))[:, :, length:] = 1e3

    monkeypatch.setattr(CPUKVCache, "copy_out", soiled)
    with PolicyRuntime(engines(), backend="onnxruntime", threads=1) as runtime:
        assert plan(runtime) is not None and runtime.prefix_length % ROOM_STEP
        assert scaled_error(plan(runtime).normalised, ARRAYS["all_normalised"]) < 1e-5


def test_shapes_of_the_plans_follow_the_cache(engines):
    directory = engines("tensorrt", "fp16")
    built = compile_pretended(directory, VERSIONS["tensorrt"]).built
    profiles = {network.path.rsplit("/", 1)[1]: config.profiles for network, config in built}
    limits = open_engine_directory(directory).config.limits
    (action,) = profiles["action.onnx"]
    capacity = limits.max_kv_cache_capacity
    assert [size[3] for size in action.shapes["prefix_key_0"]] == [1, limits.max_input_len, capacity]
    assert [size[2] for size in action.shapes["prefix_value_0"]] == [1, limits.max_input_len, capacity]
    assert len(profiles["llm.onnx"]) == 2 and len(profiles["visual.onnx"]) >= 1


def test_memory_is_asked_for_with_the_language_model_and_both_copies_of_its_cache(engines):
    directory = engines()
    found = open_engine_directory(directory)
    needed, files = needed_bytes(found, "onnxruntime"), found.manifest.files
    limits, layers = found.config.limits, found.config.kv_layers
    width = sum(2 * heads * size for heads, size in layers) * 4
    assert needed["caches"] == 2 * width * limits.max_kv_cache_capacity
    assert needed["weights"] >= sum(size for name, size in files.items() if ".onnx" in name)


@pytest.mark.parametrize("change", ["type", "layers"])
def test_an_action_engine_that_does_not_fit_the_cache_is_refused(engines, tmp_path, change):
    path = shutil.copytree(engines("onnxruntime"), tmp_path / "engine")
    graph = path / "action" / "action.onnx"
    if change == "type":
        for name in ("action.onnx", "action.onnx.data"):
            shutil.copyfile(engines("onnxruntime", "fp16") / "action" / name, path / "action" / name)
    else:
        model = onnx.load(graph, load_external_data=False)
        for tensor in model.graph.input:
            tensor.name = "prefix_key_9" if tensor.name == "prefix_key_0" else tensor.name
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = "prefix_key_9" if name == "prefix_key_0" else name
        onnx.save(model, graph)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["samples"] = {}
    manifest["files"] = {name: (path / name).stat().st_size for name in manifest["files"]}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PolicyError, match=r"its language model caches float32 \(1, 2, .*: build both at one precision"):
        PolicyRuntime(path, backend="onnxruntime", threads=1).close()


# ---- on a GPU


def gpu_backend(name, directory):
    """The backend of that name for a directory, with its plans; skipped where there is none, and only then."""
    try:
        open_backend(name).close()
    except EdgeLLMError as error:
        pytest.skip(str(error))
    if name == "tensorrt":
        from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan

        compile_plan(directory, PlanOptions(library_tactics=False))
    return open_backend(name, directory=open_engine_directory(directory))


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["onnxruntime_cuda", "tensorrt"])
def test_a_gpu_plans_what_the_cpu_plans(engines, name):
    directory = engines("tensorrt_legacy", "fp32")
    with PolicyRuntime(directory, backend="onnxruntime", threads=1) as cpu:
        wanted = plan(cpu)
    backend = gpu_backend(name, directory)
    with PolicyRuntime(directory, backend=backend) as runtime:
        chunks = [plan(runtime) for _ in range(4)]
        for chunk in chunks:
            assert chunk.reasoning == wanted.reasoning
            assert np.abs(chunk.normalised - wanted.normalised).max() < 1e-3
        assert chunks[-1].normalised.tobytes() == chunks[-2].normalised.tobytes()
        assert runtime.recordings.counts.get("denoise") == 1, runtime.recordings.report()
    backend.close()


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_a_gpu_plans_near_the_cpu_in_half_precision(engines):
    """In one step and without words, of which half precision may choose others."""
    backend, found = gpu_backend("onnxruntime_cuda", engines("onnxruntime", "fp16")), []
    for lowering, precision, device in (("tensorrt_legacy", "fp32", "onnxruntime"), ("onnxruntime", "fp16", backend)):
        with PolicyRuntime(engines(lowering, precision), backend=device) as runtime:
            runtime.reasoning_tokens = 0
            found.append(plan(runtime, denoise_steps=1).normalised.ravel().astype(np.float64))
    ours, wanted = found
    assert ours @ wanted / np.linalg.norm(ours) / np.linalg.norm(wanted) > 0.999
    backend.close()
