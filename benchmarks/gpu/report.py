"""Rows of a results file on a GPU, the checks among them, and what they were measured with."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgellm_ros.errors import EdgeLLMError

from . import checks


@dataclass
class Report:
    """Rows of a results file, and whether every check held."""

    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    path: Path | None = None  # written after every row, so that a run cut short leaves what it had

    def add(
        self, case: str, metric: str, unit: str, ours: float, runs: list[float] | None = None,
        peer: str | None = None, peer_value: float | None = None, peer_runs: list[float] | None = None,
    ) -> None:  # fmt: skip
        """One row of the results file."""
        ratio = ours / peer_value if peer_value else None
        self.rows.append(
            {
                "case": case, "metric": metric, "unit": unit, "ours": ours, "peer": peer, "peer_value": peer_value,
                "ratio": ratio, "device": self.device, "versions": self.versions,
                "runs": {"ours": runs or [ours], "peer": peer_runs or []},
            }
        )  # fmt: skip
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")

    def check(self, case: str, metric: str, unit: str, run: Callable[[], float], least: float | None = None) -> None:
        """Run a check; a value below ``least``, or an exception, counts as failed."""
        start = time.monotonic()
        try:
            value = run()
        except (checks.CheckError, EdgeLLMError) as error:
            self.failed.append(f"{case}: {metric}: {error}")
            print(f"FAILED {case}: {metric}: {error}", flush=True)
            return
        self.add(case, metric, unit, value)
        if least is not None and value < least:
            self.failed.append(f"{case}: {metric} is {value}; want at least {least}")
        print(f"{case}: {metric} = {value:.6g} {unit} ({time.monotonic() - start:.1f} s)", flush=True)


def start_report(library: str) -> Report:
    from edgellm_ros.backends.cuda.backend import CUDABackend

    backend = CUDABackend(library)
    report = Report(device=backend.device.name, versions={"python": platform.python_version()})
    report.versions |= {**checks.cuda_versions(backend), "compute": backend.device.architecture}
    backend.close()
    for package in ("cuda-bindings", "numpy", "onnxruntime-gpu", "tensorrt"):
        try:
            report.versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return report
