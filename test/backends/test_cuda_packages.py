"""Without the packages or the GPU: what is said, and which backend ``auto`` takes instead."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cuda import FakeDriver

from edgellm_ros.backends.cuda import packages
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.registry import open_backend
from edgellm_ros.engine_format import BuilderLimits, EngineDirectory, open_engine_directory
from edgellm_ros.errors import BackendError, MissingPackageError


def hide(monkeypatch: pytest.MonkeyPatch, *names: str, message: str = "No module named '{}'") -> None:
    """Let the import of some modules fail."""
    plain = importlib.import_module

    def load(name: str, package: str | None = None) -> Any:
        if any(name == hidden or name.startswith(hidden + ".") for hidden in names):
            raise ImportError(message.format(name))
        return plain(name, package)

    monkeypatch.setattr(importlib, "import_module", load)


@pytest.mark.parametrize(
    ("load", "hidden", "sentence"),
    [
        (packages.load_driver, "cuda", "cuda-python is not installed; install it with 'pip install cuda-python'"),
        (packages.load_nvrtc, "cuda", "cuda-python is not installed"),
        (packages.load_tensorrt, "tensorrt", "tensorrt is not installed; install TensorRT 10.3 or newer"),
        (packages.load_onnxruntime, "onnxruntime", "install it with 'pip install onnxruntime-gpu'"),
    ],
    ids=["driver", "compiler", "tensorrt", "onnxruntime"],
)
def test_a_missing_package_is_named_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], Any], hidden: str, sentence: str
) -> None:
    hide(monkeypatch, hidden)
    with pytest.raises(MissingPackageError, match=sentence):
        load()


def test_a_package_that_is_there_but_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "tensorrt", message="libnvinfer.so.10: cannot open shared object file")
    with pytest.raises(MissingPackageError, match=r"tensorrt does not load \(libnvinfer.so.10"):
        packages.load_tensorrt()


def test_an_older_name_of_the_driver_module_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "cuda.bindings")
    older = SimpleNamespace(name="cuda 12.6")
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(__path__=[], cuda=older))
    monkeypatch.setitem(sys.modules, "cuda.cuda", older)
    assert packages.load_driver() is older


def test_an_onnxruntime_for_the_cpu_alone_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SimpleNamespace(__version__="1.32.0", get_available_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "onnxruntime", plain)
    with pytest.raises(MissingPackageError, match=r"installed onnxruntime 1\.32\.0 has no CUDA provider"):
        packages.load_onnxruntime()


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(BackendError, match="want 'tensorrt' or 'onnxruntime'"):
        CUDABackend("abacus")


# ---- the choice of auto


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EngineDirectory]:
    pytest.importorskip("onnxruntime")
    from edgellm_ros.builder.build import build_engine
    from edgellm_ros.builder.random_weights import write_random_llama_checkpoint

    folder = tmp_path_factory.mktemp("auto")
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", hidden_size=64, seed=1)
    found = {}
    for name, precision, lowering in (
        ("plain", "fp32", "onnxruntime"), ("half", "fp16", "onnxruntime"), ("legacy", "fp32", "tensorrt_legacy"),
    ):  # fmt: skip
        path = build_engine(
            checkpoint, folder / name, precision=precision, limits=BuilderLimits(1, 16, 32), lowering=lowering
        )
        found[name] = open_engine_directory(path)
    return found


def test_auto_says_why_it_passed_others_over(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, EngineDirectory], caplog: pytest.LogCaptureFixture
) -> None:
    hide(monkeypatch, "cuda", "tensorrt")
    reasons: list[str] = []
    with caplog.at_level("INFO"):
        backend = open_backend("auto", threads=1, directory=directories["legacy"], passed_over=reasons)
    assert backend.name == "onnxruntime"
    assert [reason.split(":")[0] for reason in reasons] == ["tensorrt", "onnxruntime_cuda"]
    assert "no llm.engine; make one with 'edgellm build ... --plan'" in reasons[0]
    assert "CUDA provider" in reasons[1] or "cuda-python" in reasons[1]
    assert caplog.text.count("is passed over") == 2
    backend.close()


def test_auto_does_not_look_for_a_gpu_that_could_not_run_the_graph(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, EngineDirectory]
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a GPU was looked for")

    monkeypatch.setattr(packages, "_load", refuse)
    reasons: list[str] = []
    backend = open_backend("auto", threads=1, directory=directories["plain"], passed_over=reasons)
    assert backend.name == "onnxruntime" and "--precision fp16" in reasons[0]
    backend.close()


def test_auto_takes_the_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, EngineDirectory]
) -> None:
    from fake_libraries import fake_onnxruntime

    driver = FakeDriver()
    monkeypatch.setattr(
        packages, "_load", lambda names, package, key: driver if key == "cuda" else fake_onnxruntime(driver)
    )
    for name in ("half", "legacy"):
        backend = open_backend("auto", threads=1, directory=directories[name])
        assert backend.name == "onnxruntime_cuda"
        backend.close()


def test_auto_passes_a_gpu_over_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, EngineDirectory]
) -> None:
    from fake_libraries import fake_onnxruntime

    driver = FakeDriver(memory=100 << 20)
    monkeypatch.setattr(
        packages, "_load", lambda names, package, key: driver if key == "cuda" else fake_onnxruntime(driver)
    )
    reasons: list[str] = []
    backend = open_backend("auto", threads=1, directory=directories["legacy"], passed_over=reasons)
    assert backend.name == "onnxruntime"
    assert "out of memory" in reasons[1] and "too little" in reasons[1]
    assert driver.contexts == 0
    backend.close()


@pytest.mark.parametrize("name", ["tensorrt", "onnxruntime_cuda"])
def test_a_gpu_backend_that_is_asked_for_by_name_is_refused_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    hide(monkeypatch, "cuda", "tensorrt", "onnxruntime")
    with pytest.raises(MissingPackageError, match="is not installed"):
        open_backend(name)


def test_nothing_of_cuda_is_imported_before_it_is_used(tmp_path: Path) -> None:
    program = (
        "import sys; import edgellm_ros.backends.cuda.opening, edgellm_ros.backends.registry;"
        "print([name for name in sys.modules if name.split('.')[0] in ('cuda', 'tensorrt', 'onnxruntime', 'onnx')])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
