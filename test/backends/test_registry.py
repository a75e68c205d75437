from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from edgellm_ros.backends.registry import open_backend
from edgellm_ros.errors import BackendError, MissingPackageError


@pytest.mark.parametrize(
    ("name", "lowering", "wanted"),
    [
        ("auto", "fake", "fake"),
        ("fake", None, "fake"),
        ("fake", "fake", "fake"),
        ("auto", None, "onnxruntime"),
        ("auto", "onnxruntime", "onnxruntime"),
        ("onnxruntime", None, "onnxruntime"),
    ],
)
def test_a_backend_is_found_by_name_or_by_lowering(name: str, lowering: str | None, wanted: str) -> None:
    if wanted == "onnxruntime":
        pytest.importorskip("onnxruntime")
    backend = open_backend(name, lowering=lowering)
    assert backend.name == wanted
    backend.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "abacus"}, "'abacus' is unknown; want one of auto"),
        ({"name": "auto", "lowering": "punched_cards"}, "lowering 'punched_cards'"),
        ({"name": "fake", "lowering": "onnxruntime"}, "cannot run .*'onnxruntime'"),
        ({"name": "onnxruntime", "lowering": "fake"}, "cannot run .*'fake'"),
        ({"name": "fake", "threads": -1}, "threads is -1"),
        ({"name": "fake", "threads": True}, "threads is True"),
    ],
    ids=str,
)
def test_what_cannot_be_opened_is_refused_with_what_was_wanted(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        open_backend(**arguments)  # type: ignore[arg-type]


def test_a_missing_library_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(MissingPackageError, match="pip install onnxruntime"):
        open_backend("auto")


def test_opening_the_fake_imports_no_engine_library() -> None:
    program = (
        "import sys; from edgellm_ros.backends.registry import open_backend; open_backend('fake');"
        "print([name for name in ('onnxruntime', 'onnx', 'torch', 'rclpy', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
