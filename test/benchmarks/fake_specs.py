"""Specifications of the engines in ``fake_engines.py``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import EngineSpec

HERE = Path(__file__).parent
KEYS = {"case", "metric", "unit", "ours", "peer", "peer_value", "ratio", "device", "versions", "runs"}


def scripted(name: str, values: list[float], **options: object) -> EngineSpec:
    answers = [{"rate": value} for value in values]
    return fake("Scripted", name, name=name, answers=answers, **options)


def faulty(fault: str, at_start: bool) -> EngineSpec:
    return fake("Faulty", "faulty", fault=fault, at_start=at_start)


def fake(program: str, label: str, **options: object) -> EngineSpec:
    return EngineSpec(label, f"fake_engines:{program}", options, environment={"PYTHONPATH": str(HERE)})
