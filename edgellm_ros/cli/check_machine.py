"""Whether an engine directory is whole, and which backend of this machine runs it, in the memory that is free."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..action.fingerprints import check_fingerprints
from ..action.policy_manifest import ACTION_DIRECTORY, POLICY_FILE, PolicyManifest, read_policy_manifest
from ..backends.registry import obstacle, open_backend
from ..engine_format import EngineDirectory, open_engine_directory
from ..errors import BackendError
from ..ros.engine_host import holds_language_model
from ..ros.memory import needed_memory, spare_memory
from ..vision.visual_directory import VisualDirectory, find_visual_directory, open_visual_directory
from .findings import Findings

_GPU_DEVICES = ("/dev/nvidia0", "/dev/nvmap", "/dev/nvgpu")  # of a card, and of Jetson
_MEGABYTE = 1e6


@dataclass(frozen=True)
class CheckedEngine:
    """A directory all of whose parts are whole; ``tower`` and ``policy`` are None where it has none."""

    directory: EngineDirectory
    tower: VisualDirectory | None
    policy: PolicyManifest | None

    @property
    def sees(self) -> bool:
        """Whether prompts are answered with images."""
        return self.tower is not None and holds_language_model(self.directory)


def check_files(findings: Findings, path: Path) -> CheckedEngine | None:
    """Everything that is read before an engine is loaded; None where a part of it could not be."""
    from ..runtime.tokenizer import Tokenizer

    with findings.of("directory"):
        directory = open_engine_directory(path)
        manifest = directory.manifest
        findings.ok(
            "directory",
            f"{path} holds {directory.config.model} in {manifest.precision} for {manifest.lowering}: "
            f"{len(manifest.files)} files of {sum(manifest.files.values()) / _MEGABYTE:.1f} MB, as they were built.",
        )
        tokenizer = Tokenizer.from_directory(path)
        template = "with a chat template" if tokenizer.chat_template else "without a chat template"
        findings.ok("tokenizer", f"{len(directory.config.eos_token_id)} end tokens, {template}.")
        place = find_visual_directory(path, None)
        tower = None if place is None else open_visual_directory(place)
        return CheckedEngine(directory, tower, _policy(findings, directory))
    return None


def _policy(findings: Findings, directory: EngineDirectory) -> PolicyManifest | None:
    place = directory.path / ACTION_DIRECTORY
    if not (place / POLICY_FILE).is_file():
        return None
    policy = read_policy_manifest(place)
    check_fingerprints(directory, policy)
    findings.ok("policy", f"{policy.family}, {policy.horizon} actions of {policy.step_time:.4g} s a chunk.")
    return policy


def check_backend(findings: Findings, directory: EngineDirectory, name: str, threads: int, reserve_mb: int) -> None:
    """Open what would run it, without an engine, and compare memory."""
    passed_over: list[str] = []
    with (
        findings.of("backend"),
        closing(open_backend(name, threads=threads, directory=directory, passed_over=passed_over)) as backend,
    ):
        if name != "auto" and (reason := obstacle(name, directory)):
            raise BackendError(f"{name} cannot run it: {reason}")
        used = f" with {backend.threads} threads" if hasattr(backend, "threads") else ""
        findings.ok("backend", f"{backend.name}{used} runs it, as engine.backend {name} asks.")
        if hasattr(backend, "device"):
            _check_device(findings, directory, backend)
    _tell_passed_over(findings, passed_over)
    with findings.of("memory"):
        spare = spare_memory(directory, reserve_mb)
        needed = f"about {needed_memory(directory) / _MEGABYTE:.0f} MB are needed"
        if spare is None:
            findings.warning("memory", f"{needed}, and the system does not tell how much is free; look with 'free -m'.")
        else:
            findings.ok(
                "memory",
                f"{needed}; that leaves {spare / _MEGABYTE:.0f} MB of what is free, "
                f"beside {reserve_mb} MiB that engine.memory_reserve_mb keeps.",
            )


def _tell_passed_over(findings: Findings, passed_over: list[str]) -> None:
    """A backend that would be faster is missed on a machine with a GPU only."""
    has_gpu = any(Path(place).exists() for place in _GPU_DEVICES)
    for reason in passed_over:
        if has_gpu:
            findings.warning("backend", f"This machine has a GPU, and passed over was {reason}")
        else:
            findings.ok("backend", f"Passed over was {reason}")


def _check_device(findings: Findings, directory: EngineDirectory, backend: Any) -> None:
    """Memory of a GPU, and plans for it down to every byte."""
    from ..backends.cuda.memory_check import check_memory, needed_bytes
    from ..backends.cuda.plan_file import PLAN_SUFFIX, check_plan
    from ..backends.cuda.tensorrt_api import TensorRT

    library, device = backend.name.removesuffix("_cuda"), backend.device
    with findings.of("memory"):
        check_memory(device, directory.path, library)
        needed, (free, _) = sum(needed_bytes(directory, library).values()), device.memory()
        findings.ok(
            "memory", f"about {needed / _MEGABYTE:.0f} MB of the {free / _MEGABYTE:.0f} MB free on {device.name}."
        )
    if library == "tensorrt":
        version = TensorRT().version
        for plan in sorted(directory.path.rglob(f"*{PLAN_SUFFIX}")):
            with findings.of("plan"):
                check_plan(plan, version, device.architecture, device.name)
                findings.ok("plan", f"{plan} is for TensorRT {version} and {device.name}, and whole.")
