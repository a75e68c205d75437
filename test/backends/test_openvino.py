"""OpenVINO beside ONNX Runtime: it runs what it runs as well and faster, and everything else stays where it was."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from openvino_choice import compute_in_float32, prefer_openvino

from edgellm_ros.backends import chosen_engine, openvino_graph
from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.registry import graph_libraries, open_backend
from edgellm_ros.errors import BackendError, MissingPackageError

pytest.importorskip("openvino")

WIDTH = 16


@pytest.fixture
def preferred(monkeypatch):
    prefer_openvino(monkeypatch)


@pytest.fixture
def exact(monkeypatch):
    compute_in_float32(monkeypatch)


def write_graph(path: Path, nodes: list[onnx.NodeProto] | None = None, domain: str = "") -> Path:
    """y = gelu(x @ w) with x [n,16]; or other nodes from x and w to y."""
    weight = np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    nodes = nodes or [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Gelu", ["z"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 23), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


class Subject:
    """One graph on both backends, fed with the same numbers."""

    def __init__(self, path: Path) -> None:
        self.backends = [open_backend(name, threads=1) for name in ("onnxruntime", "openvino")]
        self.engines = [backend.open_engine(path) for backend in self.backends]

    @property
    def library(self) -> str:
        (library,) = graph_libraries(self.backends[1]).values()
        return library

    def run(self, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """What ONNX Runtime gives, and what the chosen library does."""
        values = np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)
        found = []
        for backend, engine in zip(self.backends, self.engines, strict=True):
            x, y = (backend.allocate((8, WIDTH), DataType.FLOAT32) for _ in range(2))
            engine.bind("x", x)
            engine.bind("y", y)
            x.prefix(values.shape).write(values)
            engine.run({"x": values.shape, "y": values.shape})
            assert not y.numpy()[rows:].any()
            found.append(y.prefix(values.shape).numpy().copy())
        return found[0], found[1]

    def close(self) -> None:
        for backend in self.backends:
            backend.close()


@pytest.fixture
def subject(tmp_path):
    made = Subject(write_graph(tmp_path / "graph.onnx"))
    yield made
    made.close()


def near(found: tuple[np.ndarray, np.ndarray], tolerance: float = 0.04) -> bool:
    return bool(np.linalg.norm(found[0] - found[1]) <= tolerance * np.linalg.norm(found[0]))


def test_runs_of_any_shape_agree_with_onnx_runtime(preferred, exact, subject):
    assert subject.library == "to be found in the first run"
    for rows in (3, 8, 1, 3):
        assert near(subject.run(rows, seed=rows), 1e-5)
    assert "OpenVINO" in subject.library and "f32" in subject.library and "times as fast" in subject.library


def test_the_slower_library_is_not_taken(monkeypatch, subject):
    monkeypatch.setattr(chosen_engine, "objection_to", lambda error, plain, other: "it is too slow")
    wanted, found = subject.run(2)
    assert (wanted == found).all()
    assert subject.library.startswith("ONNX Runtime (OpenVINO") and "it is too slow" in subject.library


@pytest.mark.parametrize(
    ("error", "plain", "other", "sentence"),
    [(0.01, 2.0, 1.0, ""), (0.01, 1.1, 1.0, "1.2 times"), (0.05, 2.0, 1.0, "error"), (float("nan"), 2.0, 1.0, "error")],
)
def test_what_speaks_against_a_library(error, plain, other, sentence):
    objection = chosen_engine.objection_to(error, plain, other)
    assert sentence in objection if sentence else objection == ""


@pytest.mark.parametrize("fault", [1.0, float("nan"), float("inf")], ids=str)
def test_other_numbers_keep_a_graph_in_onnx_runtime(monkeypatch, preferred, subject, fault):
    run = openvino_graph.OpenVINOGraph.run

    def faulty(self, shapes):
        run(self, shapes)
        self._bound["y"].array.reshape(-1)[0] += fault * 100

    monkeypatch.setattr(openvino_graph.OpenVINOGraph, "run", faulty)
    wanted, found = subject.run(4)
    assert (wanted == found).all()
    assert subject.library.startswith("ONNX Runtime") and "an error of 0.04 is allowed" in subject.library


def test_a_graph_that_openvino_does_not_take_falls_back_by_name(preferred, tmp_path):
    nodes = [helper.make_node("CDist", ["x", "w"], ["y"], domain="com.microsoft", metric="euclidean")]
    made = Subject(write_graph(tmp_path / "odd.onnx", nodes, "com.microsoft"))
    wanted, found = made.run(2)
    assert (wanted == found).all()
    assert made.library.startswith("ONNX Runtime (OpenVINO") and "CDist" in made.library
    made.close()


def test_a_run_that_fails_later_goes_on_in_onnx_runtime(monkeypatch, preferred, subject, caplog):
    assert near(subject.run(4))
    assert "times as fast" in subject.library

    def fail(self, shapes):
        raise BackendError("OpenVINO failed while running graph.onnx: out of luck.")

    monkeypatch.setattr(openvino_graph.OpenVINOGraph, "run", fail)
    for rows in (4, 2):
        wanted, found = subject.run(rows, seed=5)
        assert (wanted == found).all()
    assert "out of luck" in subject.library and "goes on in ONNX Runtime" in caplog.text


def test_a_wrong_call_is_refused_before_anything_is_chosen(preferred, subject):
    engine = subject.engines[1]
    with pytest.raises(BackendError, match="not bound"):
        engine.run({"x": (1, WIDTH), "y": (1, WIDTH)})
    with pytest.raises(ValueError, match="no tensor of"):
        engine.bind("z", subject.backends[1].allocate((1,), DataType.FLOAT32))
    assert near(subject.run(1))  # a later call is as good as a first
    with pytest.raises(BackendError, match="run with shape"):
        engine.run({"x": (1, WIDTH + 1), "y": (1, WIDTH)})
    engine.close()
    engine.close()
    with pytest.raises(BackendError, match="is closed"):
        engine.run({"x": (1, WIDTH), "y": (1, WIDTH)})


def test_it_is_taken_by_name_alone_for_what_onnx_runtime_runs():
    for lowering in ("onnxruntime", "tensorrt", "tensorrt_legacy"):
        open_backend("openvino", lowering=lowering).close()
    with pytest.raises(BackendError, match=r"'openvino' cannot run .*'fake'"):
        open_backend("openvino", lowering="fake")
    backend = open_backend("auto", lowering="onnxruntime")
    assert backend.name == "onnxruntime" and graph_libraries(backend) == {}
    backend.close()


def test_a_missing_or_broken_package_is_one_sentence(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else find(name))
    with pytest.raises(MissingPackageError, match="is not installed; install it with 'pip install openvino'"):
        open_backend("openvino")
    monkeypatch.undo()
    (tmp_path / "openvino.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "openvino")
    with pytest.raises(MissingPackageError, match=r"cannot be imported .*no_such_library.*; install it again"):
        open_backend("openvino")


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [("flags : fpu amx_tile amx_bf16 amx_int8", "bf16"), ("flags : fpu avx512_bf16", "f32"), ("Features : sve", "f32")],
)
def test_only_a_cpu_with_amx_computes_in_bfloat16(tmp_path, flags, wanted):
    place = tmp_path / "cpuinfo"
    place.write_text(f"processor : 0\n{flags}\n")
    assert openvino_graph.inference_precision(place) == wanted
    assert openvino_graph.inference_precision(tmp_path / "nothing") == "f32"
