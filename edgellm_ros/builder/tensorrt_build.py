"""Compile the TensorRT plans of an engine directory, on the GPU that will run them.

The timing cache is kept beside the plan, so that compiling again after a change is quick. Weights stay in the graph's
external data: the importer maps that file, and host memory holds what TensorRT itself makes of it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backends.cuda.device import Device
from ..backends.cuda.plan_file import PlanInfo, check_plan, file_digest, plan_of, timings_of
from ..backends.cuda.tensorrt_api import TensorRT
from ..engine_format import open_engine_directory
from ..errors import BackendError, CheckpointError
from .plan_graphs import PlanGraph, plan_graphs
from .tensorrt_network import allow_decomposition, network_flags, precision_flag

LOWERINGS = {"tensorrt": (10, 15), "tensorrt_legacy": (8, 5)}  # and the oldest TensorRT that takes them
DEFAULT_WORKSPACE = 1 << 30
_BEAT = 1.0  # seconds between reports of a version that tells no progress itself

PlanProgress = Callable[[str, float], None]  # what is done, and seconds since the start


@dataclass(frozen=True)
class PlanOptions:
    """How a plan is compiled.

    ``workspace`` bounds the scratch memory of a kernel, in bytes. ``library_tactics`` lets TensorRT time kernels of
    cuBLAS and cuDNN too, where they are installed.
    """

    workspace: int = DEFAULT_WORKSPACE
    library_tactics: bool = True

    def __post_init__(self) -> None:
        if type(self.workspace) is not int or not 1 << 20 <= self.workspace <= 1 << 40:
            raise CheckpointError(f"workspace is {self.workspace!r} bytes; want a whole number from 1 MB to 1 TB.")


def check_lowering(lowering: str) -> tuple[int, int]:
    """The oldest TensorRT that compiles plans of a lowering. :raises CheckpointError: it has no plan."""
    oldest = LOWERINGS.get(lowering)
    if oldest is None:
        raise CheckpointError(
            f"a plan is asked of the lowering {lowering!r}, which has none; want --lowering {' or '.join(LOWERINGS)}."
        )
    return oldest


def check_compiler(lowering: str, precision: str, api: TensorRT | None = None) -> TensorRT:
    """TensorRT, once it is known to take such graphs; worth asking before one is built.

    :raises CheckpointError: the lowering has no plan, or it or the precision is for a newer TensorRT than the
        installed one.
    :raises MissingPackageError: TensorRT is not installed.
    """
    oldest = check_lowering(lowering)
    api = api or TensorRT()
    if api.number < oldest:
        raise CheckpointError(
            f"the lowering {lowering!r} wants TensorRT {oldest[0]}.{oldest[1]} or newer; {api.version} "
            "is installed: build with '--lowering tensorrt_legacy'."
        )
    precision_flag(api, precision)
    return api


def compile_plan(
    directory: Path | str,
    options: PlanOptions | None = None,
    progress: PlanProgress | None = None,
    *,
    api: TensorRT | None = None,
    device: Device | None = None,
) -> Path:
    """Write the plan of every graph of an engine directory; one that fits already is left as it is.

    Returns the last one: that of the language model stands first, that of an image tower behind it.

    :raises CheckpointError: the lowering has no plan, or it or the precision is for a newer TensorRT than the
        installed one.
    :raises EngineDirectoryError: no sound engine directory.
    :raises MissingPackageError: TensorRT or cuda-python is not installed.
    :raises BackendError: no GPU, or TensorRT refuses the graph.
    """
    options = options or PlanOptions()
    found = open_engine_directory(directory)
    api = check_compiler(found.manifest.lowering, found.manifest.precision, api)
    owned = device is None
    device = device or Device()
    try:
        for target in plan_graphs(found):
            plan = compile_graph(target, options, api, device, progress or (lambda what, seconds: None))
        return plan
    finally:
        if owned:
            device.close()


def compile_graph(
    target: PlanGraph, options: PlanOptions, api: TensorRT, device: Device, progress: PlanProgress
) -> Path:
    """Write the plan of one graph, unless it is there already and fits; returns where it lies.

    :raises CheckpointError: its precision is for a newer TensorRT than the installed one.
    :raises BackendError: TensorRT refuses the graph.
    """
    plan = plan_of(target.graph)
    with contextlib.suppress(BackendError):
        check_plan(plan, api.version, device.architecture, device.name)
        return plan
    device.enter()
    _Compilation(target, options, api, device, progress).run(plan)
    return plan


class _Compilation:
    def __init__(
        self, target: PlanGraph, options: PlanOptions, api: TensorRT, device: Device, progress: PlanProgress
    ) -> None:
        self._target, self._options, self._api, self._device = target, options, api, device
        self._precision_flag = precision_flag(api, target.precision)
        self._progress = progress
        self._start = time.monotonic()

    def _report(self, what: str) -> None:
        self._progress(what, time.monotonic() - self._start)

    def run(self, plan: Path) -> None:
        self._report("reading the graph")
        module = self._api.module
        builder = module.Builder(self._api.logger)
        network = builder.create_network(network_flags(self._api))
        self._parse(network)
        allow_decomposition(module, network)
        config = self._configure(builder, network)
        cache = self._attach_timing_cache(config, timings_of(plan))
        self._report("compiling the plan")
        self._api.forget_errors()
        with self._heartbeat(config):
            content = builder.build_serialized_network(network, config)
        if content is None:
            raise BackendError(f"TensorRT {self._api.version} makes no plan: {self._api.first_error()}.")
        self._report("writing the plan")
        _write(plan, content)
        if cache is not None:
            with contextlib.suppress(OSError):  # only time is lost without it
                _write(timings_of(plan), cache.serialize())
        PlanInfo(
            tensorrt=self._api.version,
            architecture=self._device.architecture,
            device=self._device.name,
            precision=self._target.precision,
            plan_bytes=plan.stat().st_size,
            plan_sha256=file_digest(plan),
            graph_sha256=file_digest(self._target.graph),
            limits=self._target.limits,
            build_seconds=round(time.monotonic() - self._start, 1),
        ).write(plan)

    def _parse(self, network: Any) -> None:
        self._api.forget_errors()
        parser = self._api.module.OnnxParser(network, self._api.logger)
        if not parser.parse_from_file(str(self._target.graph)):
            errors = [str(parser.get_error(index)) for index in range(parser.num_errors)]
            first = " ".join(errors[0].split())[:400] if errors else self._api.first_error()
            raise BackendError(f"TensorRT {self._api.version} does not read {self._target.graph}: {first}.")

    def _configure(self, builder: Any, network: Any) -> Any:
        module = self._api.module
        config = builder.create_builder_config()
        config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, self._options.workspace)
        if not self._options.library_tactics:
            config.set_tactic_sources(0)
        self._choose_previews(config)
        flags = module.BuilderFlag
        if hasattr(flags, "TF32"):
            config.clear_flag(flags.TF32)  # float32 means float32
        if self._precision_flag is not None:
            config.set_flag(self._precision_flag)
        inputs = [network.get_input(index) for index in range(network.num_inputs)]
        for ranges in self._target.profiles:
            profile = builder.create_optimization_profile()
            for tensor in inputs:
                profile.set_shape(tensor.name, *ranges(tensor.name, tuple(int(size) for size in tensor.shape)))
            config.add_optimization_profile(profile)
        return config

    def _choose_previews(self, config: Any) -> None:
        """What version 8 does only when asked: without the first, dynamic shapes take ten times as long to compile."""
        features = getattr(self._api.module, "PreviewFeature", None)
        for name, wanted in (
            ("FASTER_DYNAMIC_SHAPES_0805", True),
            ("DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805", not self._options.library_tactics),
        ):
            if hasattr(features, name):
                config.set_preview_feature(getattr(features, name), wanted)

    def _attach_timing_cache(self, config: Any, path: Path) -> Any:
        content = b""
        with contextlib.suppress(OSError):
            content = path.read_bytes()
        cache = config.create_timing_cache(content)
        if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
            cache = config.create_timing_cache(b"")  # of another version or GPU
            config.set_timing_cache(cache, ignore_mismatch=False)
        return cache

    @contextlib.contextmanager
    def _heartbeat(self, config: Any) -> Iterator[None]:
        """Reports while TensorRT works: its own phases where it tells them, else the time."""
        if hasattr(self._api.module, "IProgressMonitor"):
            config.progress_monitor = _make_monitor(self._api.module, self._report)
            yield
            return
        done = threading.Event()

        def beat() -> None:
            while not done.wait(_BEAT):
                self._report("compiling the plan")

        thread = threading.Thread(target=beat, name="plan progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _make_monitor(module: Any, report: Callable[[str], None]) -> Any:
    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            report(f"compiling the plan: {phase_name} {step + 1} of {self._steps.get(phase_name, 0)}")
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    return Monitor()


def _write(path: Path, content: Any) -> None:
    """Whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(memoryview(content))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
