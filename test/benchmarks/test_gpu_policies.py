"""The benchmark of policies on a pretended GPU: engines are built, measured and compared; rows say of what."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import pytest

pytest.importorskip("onnxruntime")

from pretend_gpu import compile_pretended, pretend_backend

from benchmarks.gpu import policies, policy_chunks
from benchmarks.gpu.policy_shapes import POLICY_SHAPES
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.builder.build_plan import plan_build
from edgellm_ros.builder.random_policy import open_random
from edgellm_ros.errors import MissingPackageError

VERSION = "8.5.3.1"


@pytest.fixture
def gpu(monkeypatch):
    """A pretended GPU in place of this machine's, in this process."""

    def opened(library):
        return CPUBackend() if library == policies.CPU else pretend_backend(library, VERSION)

    monkeypatch.setattr(policy_chunks, "open_backend", opened)
    monkeypatch.setattr(policies, "machine", lambda library: {"device": "Pretend GPU", "versions": {}})
    monkeypatch.setattr(
        "edgellm_ros.builder.tensorrt_build.compile_plan",
        lambda directory, options: compile_pretended(directory, VERSION, options),
    )

    def here(arguments, name):
        given = [*policies._command(arguments, name, arguments.precision, "--one")[4:]]
        return policies.one(policies._arguments(given))

    monkeypatch.setattr(policies, "_child", here)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("smolvla", "onnxruntime"),
        pytest.param("groot", "onnxruntime", marks=pytest.mark.slow),
        pytest.param("smolvla", "tensorrt", marks=pytest.mark.slow),
        pytest.param("pi05", "onnxruntime", marks=pytest.mark.slow),
        pytest.param("groot", "tensorrt", marks=pytest.mark.slow),
        ("alpamayo", "onnxruntime"),
        pytest.param("alpamayo", "tensorrt", marks=pytest.mark.slow),
    ],
)
def test_rows_carry_what_they_are_of_and_half_precision_is_compared(gpu, tmp_path, capsys, name, library):
    output = tmp_path / "rows.json"
    status = policies.main(
        [name, "--tiny", "--library", library, "--chunks", "4", "--models", str(tmp_path), "--output", str(output)]
    )
    assert status == 0, capsys.readouterr().out
    rows = {row["metric"]: row for row in json.loads(output.read_text())}
    whole = rows["whole chunk"]
    views, steps, horizon = {"smolvla": (2, 3, 50), "pi05": (2, 3, 10), "groot": (1, 4, 40), "alpamayo": (4, 3, 8)}[
        name
    ]
    assert (whole["views"], whole["steps"], whole["horizon"], whole["precision"]) == (views, steps, horizon, "fp16")
    assert whole["device"] == "Pretend GPU" and whole["model"] == name and whole["prefix_tokens"] > 0
    assert (
        whole.get("must") == (None if name == "alpamayo" else POLICY_SHAPES[name].must)
        and len(whole["runs"]["ours"]) == 4
    )
    assert 0 < whole["ours"] <= whole["p95"]
    kinds = ("denoise",) if name == "alpamayo" else ("denoise", "prefix")
    assert all(whole["recorded"][f"recorded.{kind}"] == 1 and whole["nodes"][kind] >= 1 for kind in kinds)
    assert whole["nodes"]["denoise"] >= 3 * steps
    assert ("words" in whole, "cut" in whole) == (name == "alpamayo",) * 2
    assert set(rows) == {
        "whole chunk", *policies.PARTS, "whole chunk, nothing recorded", "least cosine with float32, chunk",
        "least cosine with float32, what denoising adds",
    }  # fmt: skip
    assert rows["least cosine with float32, chunk"]["ours"] >= policies.LEAST_COSINE
    assert rows["least cosine with float32, what denoising adds"]["ours"] > 0.99


@pytest.mark.slow
def test_a_policy_that_fails_leaves_the_others_their_figures(tmp_path, capfd, monkeypatch):
    """One is not built, one has no float32, of one the comparison takes too long."""
    command = policies._command

    def spoiled(arguments, name, precision, *more):
        given = command(arguments, name, precision, *more)
        late = "import json, sys, time; print(sys.argv[1], flush=True); time.sleep(99)"
        times = asdict(
            policies.ChunkTimes([0.1], {part: [0.1] for part in policies.PARTS}, [0.1], facts={"library": "cpu"})
        )
        if (name, more) == ("pi05", ("--one",)):
            return [sys.executable, "-c", late, json.dumps(times)]
        broken = (name, precision) in (("groot", "fp16"), ("smolvla", "fp32")) and "--build-only" in more
        return [sys.executable, "-c", "raise SystemExit('it broke')"] if broken else given

    monkeypatch.setattr(policies, "_command", spoiled)
    output = tmp_path / "rows.json"
    given = ["groot", "smolvla", "pi05", "--tiny", "--library", "cpu", "--chunks", "2", "--models", str(tmp_path)]
    assert policies.main([*given, "--output", str(output), "--limit", "20"]) == 1
    found = {(row["case"], row["metric"]) for row in json.loads(output.read_text())}
    assert ("policy smolvla", "whole chunk") in found and ("policy pi05", "whole chunk") in found
    failed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert failed == [
        "FAILED groot: fp16 was not built; the messages above say why",
        "FAILED smolvla: the comparison with float32 ended with FileNotFoundError: no fp32 engines were built",
        "FAILED pi05: it was ended after 20 s",
    ]


def test_the_way_there_is_tried_on_a_machine_without_a_gpu(tmp_path, capfd):
    """Every process and file of the real run: builders and measurements are processes of their own."""
    output = tmp_path / "rows.json"
    given = ["smolvla", "--tiny", "--chunks", "2", "--models", str(tmp_path), "--output", str(output)]
    assert policies.main([*given, "--library", "cpu"]) == 0, capfd.readouterr().out
    rows = {row["metric"]: row for row in json.loads(output.read_text())}
    assert rows["whole chunk"]["backend"] == "onnxruntime" and rows["whole chunk"]["library"] == "cpu"
    assert rows["whole chunk"]["recorded"] == rows["whole chunk"]["nodes"] == {}
    assert rows["least cosine with float32, chunk"]["ours"] >= policies.LEAST_COSINE


def test_a_machine_without_a_gpu_is_told_before_anything_is_built(tmp_path, capsys, monkeypatch):
    def absent(library):
        raise MissingPackageError("the package cuda-python is not installed.")

    monkeypatch.setattr(policies, "machine", absent)
    assert policies.main(["smolvla", "--tiny", "--models", str(tmp_path / "models")]) == 1
    assert capsys.readouterr().out == "FAILED the package cuda-python is not installed.\n"
    assert not (tmp_path / "models").exists()


def test_a_loop_that_is_not_recorded_and_a_cosine_too_low_count_as_failed():
    shape = POLICY_SHAPES["smolvla"]
    good = policies.ChunkTimes([0.1], {part: [0.1] for part in policies.PARTS}, [0.1], {"recorded.denoise": 1}, {})
    assert not policies.failures_of(good, "smolvla")
    bad = policies.ChunkTimes(
        recorded={"recorded.denoise": "no: it waits"}, cosines=[0.9995, 0.9], differences=[0.0, 0.5]
    )
    assert [failure.split(":")[1].strip() for failure in policies.failures_of(bad, "smolvla")] == [
        "the denoise loop is not recorded",
        "replayed chunks differ by [0.0, 0.5]; want 0.001 at most",
        "a cosine with float32 is 0.900000; want at least 0.999",
    ]
    assert policies.rows_of(good, shape, "fp16")[0]["metric"] == "whole chunk"


@pytest.mark.parametrize("lowering", ["onnxruntime", "tensorrt", "tensorrt_legacy"])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("smolvla", (0.33e9, 0.36e9)), ("pi05", (2.6e9, 3.5e9)), ("groot", (1.9e9, 2.9e9)), ("alpamayo", (0.4e9, 0.7e9))],
)
def test_shapes_are_those_that_were_published(tmp_path, name, lowering, parameters):
    source = POLICY_SHAPES[name].checkpoint(tmp_path)
    plan = plan_build(open_random(source, 1), precision="fp16", limits=None, lowering=lowering)
    sizes = [size for name, size in plan.policy.sizes.items() if name.endswith(".data")]
    count = (sum(sizes) + plan.vision.sizes["visual.onnx.data"]) / 2
    assert parameters[0] < count < parameters[1], count  # without the table of tokens
    pieces = [len(node.outputs) for graph, _ in plan.policy.graphs.values() for node in graph.nodes]
    assert max(pieces) <= 32  # of more, a GPU is told from the host where they go
    manifest = plan.policy.manifest
    assert (len(manifest.cameras), manifest.rows, manifest.denoise_steps) == {
        "smolvla": (2, 50, 10), "pi05": (2, 10, 10), "groot": (1, 40, 4), "alpamayo": (4, 64, 10),
    }[name]  # fmt: skip
    assert manifest.image_tokens == {"smolvla": 64, "pi05": 256, "groot": 64, "alpamayo": 0}[name]


def test_an_unknown_name_is_refused_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit):
        policies.main(["act"])
    assert "'act' is unknown; want some of smolvla, pi05, groot, alpamayo" in capsys.readouterr().err
