"""What cases need before they can start: engine directories of ours, model files of peers, which peers exist.

Everything made here lies in one folder that git ignores, and is made once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .harness import EngineSpec, PeerUnavailableError, SkippedPeer
from .peers.gguf_llama import smollm2_gguf
from .policy_shape import write_smolvla_shape
from .vision_shapes import VisionShape

ROOT = Path(__file__).resolve().parent.parent
GEMMA = "gemma3-270m"  # a model in wheels, by the name that our builder knows it by
LIMITS = ("--max-batch", "4", "--max-input", "1024", "--max-kv", "1024")


class PreparationError(Exception):
    """Ours could not be made ready; the message says what failed."""


@dataclass
class Workspace:
    """Paths and interpreters of one run of the benchmarks.

    ``llama_python`` and ``torch_python`` are interpreters that have llama-cpp-python, or torch, transformers and gguf;
    ``lerobot_python`` is one that has lerobot.
    """

    cache: Path = ROOT / "benchmarks" / ".cache"
    threads: int = 2
    llama_python: str = sys.executable
    torch_python: str = sys.executable
    lerobot_python: str = sys.executable
    lerobot_path: str = ""  # folders to look for its packages in first
    say: Callable[[str], None] = print
    _importable: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        """The SmolLM2-135M-Instruct GGUF.

        :raises PreparationError: its wheel is not installed.
        """
        try:
            return smollm2_gguf()
        except ModuleNotFoundError as error:
            raise PreparationError(str(error)) from None

    def engine_directory(self, precision: str, options: Sequence[str] = (), model: str = "smollm2") -> Path:
        """An engine directory of SmolLM2 or ``GEMMA``, built by the command line; rebuilt when the builder's code
        changes.

        :raises PreparationError: the build failed.
        """
        source = str(self.source) if model == "smollm2" else model
        return self._built(model, precision, source, [*LIMITS, *options])

    def policy_directory(self, precision: str) -> Path:
        """An engine directory of SmolVLA's published shape with random weights.

        :raises PreparationError: the build failed.
        """
        shape = write_smolvla_shape(self.cache / "smolvla-450m-shape")
        return self._built("smolvla-450m", precision, str(shape), ["--random-weights"])

    def tabletop_directory(self) -> Path:
        """An engine directory of the policy that comes with the package.

        :raises PreparationError: the build failed.
        """
        source = ROOT / "edgellm_ros" / "tabletop" / "checkpoint"
        settings = str(source / "policy_settings.yaml")
        return self._built("tabletop", "int8", str(source), ["--policy-settings", settings])

    def _built(self, model: str, precision: str, source: str, options: Sequence[str] = ()) -> Path:
        kind = "".join((precision, *(option.replace("--", "_").replace("/", "_") for option in options)))
        directory = self.cache / f"{model}-{kind}-{builder_digest()}"
        if not (directory / "manifest.json").is_file():
            self.say(f"building {model} {precision}")
            self.cache.mkdir(parents=True, exist_ok=True)
            for old in self.cache.glob(f"{model}-{kind}-*"):
                shutil.rmtree(old)
            command = [*build_command(), source, str(directory), "--precision", precision, *options]
            done = subprocess.run(command, cwd=ROOT, env=child_environment(), capture_output=True, text=True)
            if done.returncode:
                raise PreparationError(f"edgellm build exited with {done.returncode}: {last_line(done.stderr)}")
        return directory

    def ours(self, precision: str, options: Sequence[str] = (), model: str = "smollm2") -> EngineSpec:
        """Our runtime on an engine directory of that precision, built with these options."""
        directory = self.engine_directory(precision, options, model)
        return EngineSpec(f"edgellm {precision}", "benchmarks.ours:Runtime", {"engine_directory": str(directory)})

    def random_engine(self, shape: VisionShape, precision: str, *, text_only: bool = False) -> Path:
        """An engine directory of random weights in the shape of a vision-language model.

        :raises PreparationError: the build failed.
        """
        options = ["--random-weights", "--max-batch", "1", "--max-input", "4096", "--max-kv", "4096"]
        source = shape.write(self.cache / f"{shape.label}-shape")
        return self._built(shape.label, precision, str(source), [*options, *(["--text-only"] if text_only else [])])

    def torch_tower(self, shape: VisionShape, precision: str) -> EngineSpec | SkippedPeer:
        """The image tower of a shape in transformers on torch."""
        label = f"transformers torch tower {precision}"
        try:
            for package in ("torch", "transformers"):
                self._need(self.torch_python, package, "--torch-python")
        except PeerUnavailableError as skip:
            return SkippedPeer(label, str(skip))
        return EngineSpec(
            label,
            "benchmarks.peers.transformers_tower:TransformersTower",
            {"config": dict(shape.config), "precision": precision},
            interpreter=self.torch_python,
        )

    def llama_cpp(self, kind: str) -> EngineSpec | SkippedPeer:
        """llama.cpp on weights that it requantised to ``kind`` itself."""
        label = f"llama.cpp {kind}"
        try:
            self._need(self.llama_python, "llama_cpp", "--llama-python")
            return EngineSpec(
                label,
                "benchmarks.peers.llama_cpp:LlamaCpp",
                {"model": str(self._llama_file(kind))},
                interpreter=self.llama_python,
            )
        except PeerUnavailableError as skip:
            return SkippedPeer(label, str(skip))

    def llama_cpp_gemma(self) -> EngineSpec | SkippedPeer:
        """llama.cpp on the file of ``GEMMA`` as it was published, of about four bits."""
        from edgellm_ros.builder.wheel_models import WHEEL_MODELS

        label = "llama.cpp q4_k_m"
        try:
            self._need(self.llama_python, "llama_cpp", "--llama-python")
        except PeerUnavailableError as skip:
            return SkippedPeer(label, str(skip))
        path = self.cache / f"{GEMMA}.gguf"
        if not path.is_file():
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                for piece in WHEEL_MODELS[GEMMA].files():
                    file.write(piece.read_bytes())
            partial.rename(path)
        return EngineSpec(
            label, "benchmarks.peers.llama_cpp:LlamaCpp", {"model": str(path)}, interpreter=self.llama_python
        )

    def torch(self) -> EngineSpec | SkippedPeer:
        """Transformers on torch, float32."""
        label = "transformers torch fp32"
        try:
            for package in ("torch", "transformers", "gguf"):
                self._need(self.torch_python, package, "--torch-python")
        except PeerUnavailableError as skip:
            return SkippedPeer(label, str(skip))
        return EngineSpec(
            label,
            "benchmarks.peers.transformers_torch:TransformersTorch",
            {"model": str(self.source)},
            interpreter=self.torch_python,
        )

    def lerobot(self, precision: str) -> EngineSpec | SkippedPeer:
        """The SmolVLA of lerobot on torch: fp32, or with language model and expert in bf16, as lerobot loads them."""
        label = f"lerobot torch {precision}"
        path = [str(ROOT), *filter(None, (self.lerobot_path,))]
        environment = {"PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"}
        try:
            for package in ("torch", "lerobot"):
                self._need(self.lerobot_python, package, "--lerobot-python and --lerobot-path", environment)
        except PeerUnavailableError as skip:
            return SkippedPeer(label, str(skip))
        return EngineSpec(
            label,
            "benchmarks.peers.lerobot_smolvla:LerobotSmolVLA",
            {"shape": str(write_smolvla_shape(self.cache / "smolvla-450m-shape")), "precision": precision},
            interpreter=self.lerobot_python,
            environment=environment,
        )

    def _llama_file(self, kind: str) -> Path:
        path = self.cache / f"llama-cpp-{self.source.stat().st_size}-{kind}.gguf"
        if path.is_file():
            return path
        self.cache.mkdir(parents=True, exist_ok=True)
        # From float32, so that a four-bit source is dequantised once and every kind starts from the same numbers.
        source = self.source if kind == "f32" else self._llama_file("f32")
        self.say(f"llama.cpp: writing {kind} weights")
        command = [self.llama_python, "-m", "benchmarks.peers.llama_cpp", str(source), str(path), kind]
        done = subprocess.run(command, cwd=ROOT, env=child_environment(), capture_output=True, text=True)
        if done.returncode:
            raise PeerUnavailableError(
                f"requantising to {kind} exited with {done.returncode}: {last_line(done.stderr)}"
            )
        return path

    def _need(self, interpreter: str, package: str, option: str, environment: Mapping[str, str] | None = None) -> None:
        """:raises PeerUnavailableError: that interpreter cannot import the package."""
        key = (interpreter, package)
        if key not in self._importable:
            code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
            try:
                variables = {**os.environ, **(environment or {})}
                done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, env=variables)
                missing = f"{package} is not importable; name an interpreter that has it with {option}"
                self._importable[key] = missing if done.returncode else ""
            except OSError as error:
                self._importable[key] = f"{interpreter} cannot be started ({error.strerror})"
        if self._importable[key]:
            raise PeerUnavailableError(self._importable[key])


def builder_digest() -> str:
    """A short name for the state of the code that writes engine directories."""
    digest = hashlib.sha256(" ".join(LIMITS).encode())
    package = ROOT / "edgellm_ros"
    for path in [*sorted((package / "builder").rglob("*.py")), package / "engine_format.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def build_command() -> list[str]:
    """``edgellm build`` of this source tree."""
    return [sys.executable, "-m", "edgellm_ros.cli.main", "build"]


def child_environment() -> dict[str, str]:
    """The environment with this source tree importable."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
