"""What tests decide about OpenVINO in place of a stopwatch and of the processor."""

from __future__ import annotations

import pytest

from edgellm_ros.backends import chosen_engine, openvino_graph


def prefer_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as faster, as it would be on larger graphs."""
    judge = chosen_engine.objection_to
    monkeypatch.setattr(chosen_engine, "objection_to", lambda error, plain, other: judge(error, plain, plain / 2))


def compute_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU with AMX as well."""
    monkeypatch.setattr(openvino_graph, "inference_precision", lambda: "f32")
