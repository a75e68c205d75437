"""ONNX Runtime's CUDA provider and TensorRT, played by ONNX Runtime on the CPU over the fake device's memory."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from fake_cuda import FakeDriver

PROVIDER = "CUDAExecutionProvider"
_ELEMENTS = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8}
_LABELS = {
    "tensor(float)": "FLOAT", "tensor(float16)": "HALF", "tensor(int32)": "INT32", "tensor(int64)": "INT64",
    "tensor(uint8)": "UINT8",
}  # fmt: skip


def _session(path: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def fake_onnxruntime(driver: FakeDriver, *, records: bool = True, provider: bool = True) -> Any:
    """The module ``onnxruntime``. ``records``: runs may stand in a graph; ``provider``: CUDA does start."""

    class Binding:
        def __init__(self, binding: Any) -> None:
            self.inner = binding

        def bind_input(self, name: str, device: str, ordinal: int, element: Any, shape: Any, address: int) -> None:
            assert device == "cuda"
            self.inner.bind_input(name, "cpu", 0, element, shape, address)

        def bind_output(self, name: str, device: str, ordinal: int, element: Any, shape: Any, address: int) -> None:
            assert device == "cuda"
            self.inner.bind_output(name, "cpu", 0, element, shape, address)

    class Session:
        def __init__(self, path: str, options: Any, providers: Any) -> None:
            self.options = dict(providers[0][1])
            self._inner = _session(path)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def get_providers(self) -> list[str]:
            return [PROVIDER] if provider else ["CPUExecutionProvider"]

        def io_binding(self) -> Binding:
            return Binding(self._inner.io_binding())

        def run_with_iobinding(self, binding: Binding, options: Any) -> None:
            if not records:
                status = driver.cuStreamSynchronize(5)[0]
                if status:
                    raise RuntimeError(f"CUDA failure {status}")
            driver.enqueue(lambda: self._inner.run_with_iobinding(binding.inner))

    class RunOptions:
        def __init__(self) -> None:
            self.entries: dict[str, str] = {}

        def add_run_config_entry(self, key: str, value: str) -> None:
            self.entries[key] = value

    return SimpleNamespace(
        __version__="1.99.0",
        get_available_providers=lambda: [PROVIDER, "CPUExecutionProvider"],
        InferenceSession=Session,
        SessionOptions=onnxruntime.SessionOptions,
        RunOptions=RunOptions,
    )


class _Severity:
    ERROR, INTERNAL_ERROR, WARNING = "error", "internal error", "warning"


class _Logger:
    Severity = _Severity

    def log(self, severity: str, message: str) -> None:
        raise NotImplementedError


def fake_tensorrt(driver: FakeDriver, version: str = "10.3.0") -> Any:
    """The module ``tensorrt`` of one version; a plan names the graph that it was made from and its profiles."""
    modern = int(version.split(".")[0]) >= 10

    class Engine:
        def __init__(self, path: str, profiles: list[dict[str, Any]]) -> None:
            self.session = _session(path)
            self._profiles = profiles
            self._nodes = [*self.session.get_inputs(), *self.session.get_outputs()]
            self._inputs = {node.name for node in self.session.get_inputs()}
            self.num_io_tensors = len(self._nodes)
            self.num_optimization_profiles = len(profiles)
            if modern:
                self.device_memory_size_v2 = 4096
                self.get_tensor_profile_shape = lambda name, profile: self._profiles[profile][name]
                self.create_execution_context = lambda strategy: Context(self)
            else:
                self.device_memory_size = 4096
                self.get_profile_shape = lambda profile, name: self._profiles[profile][name]
                self.create_execution_context_without_device_memory = lambda: Context(self)

        def get_tensor_name(self, index: int) -> str:
            return str(self._nodes[index].name)

        def _node(self, name: str) -> Any:
            return next(node for node in self._nodes if node.name == name)

        def get_tensor_dtype(self, name: str) -> Any:
            return SimpleNamespace(name=_LABELS[self._node(name).type])

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return tuple(size if isinstance(size, int) else -1 for size in self._node(name).shape)

        def get_tensor_mode(self, name: str) -> str:
            return "input" if name in self._inputs else "output"

    class Context:
        def __init__(self, engine: Engine) -> None:
            self._engine = engine
            self._profile = 0
            self.shapes: dict[str, tuple[int, ...]] = {}
            self.addresses: dict[str, int] = {}
            self.memory = (0, 0)
            if modern:
                self.set_device_memory = lambda address, size: setattr(self, "memory", (address, size))
            else:
                self.device_memory = 0

        def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
            self._profile = profile
            return True

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            low, _, high = self._engine._profiles[self._profile][name]
            if not all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True)):
                return False
            self.shapes[name] = tuple(shape)
            return True

        def set_tensor_address(self, name: str, address: int) -> bool:
            self.addresses[name] = address
            return True

        def execute_async_v3(self, stream: int) -> bool:
            binding = self._engine.session.io_binding()
            free_outputs = [name for name in self.addresses if name not in self.shapes]
            if "inputs_embeds" not in self.shapes:
                return self._execute_freely(binding, free_outputs)
            batch, chunk = self.shapes["inputs_embeds"][:2]
            for name, address in self.addresses.items():
                element = _ELEMENTS[self._engine.get_tensor_dtype(name).name]
                if name in self.shapes:
                    binding.bind_input(name, "cpu", 0, element, list(self.shapes[name]), address)
                    continue
                free = iter((batch, 1 if name == "logits" else chunk))
                shape = [next(free) if size == -1 else size for size in self._engine.get_tensor_shape(name)]
                binding.bind_output(name, "cpu", 0, element, shape, address)
            driver.enqueue(lambda: self._engine.session.run_with_iobinding(binding))
            return True

        def _execute_freely(self, binding: Any, outputs: list[str]) -> bool:
            """Outputs of whatever shape the graph gives them."""
            places = dict(self.addresses)
            for name, shape in self.shapes.items():
                element = _ELEMENTS[self._engine.get_tensor_dtype(name).name]
                binding.bind_input(name, "cpu", 0, element, list(shape), places[name])
            for name in outputs:
                binding.bind_output(name, "cpu")

            def run() -> None:
                self._engine.session.run_with_iobinding(binding)
                for name, value in zip(outputs, binding.copy_outputs_to_cpu(), strict=True):
                    ctypes.memmove(places[name], np.ascontiguousarray(value).ctypes.data, value.nbytes)

            driver.enqueue(run)
            return True

    class Runtime:
        def __init__(self, logger: _Logger) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, plan: Any) -> Engine | None:
            content = bytes(plan).decode(errors="replace")
            if not content.startswith("plan\n"):
                self._logger.log(_Severity.ERROR, "the plan is of another kind")
                return None
            _, path, profiles = content.split("\n", 2)
            return Engine(path, eval(profiles))

    class Profile:
        def __init__(self) -> None:
            self.shapes: dict[str, Any] = {}

        def set_shape(self, name: str, low: Any, usual: Any, high: Any) -> None:
            self.shapes[name] = (tuple(low), tuple(usual), tuple(high))

    class Flags:
        FP16, TF32 = "fp16", "tf32"

    class Config:
        def __init__(self) -> None:
            self.profiles: list[Profile] = []
            self.flags = {Flags.TF32}
            self.limits: dict[str, int] = {}
            self.cache: Any = None

        def set_memory_pool_limit(self, pool: str, size: int) -> None:
            self.limits[pool] = size

        def set_tactic_sources(self, sources: int) -> None:
            self.sources = sources

        def set_flag(self, flag: str) -> None:
            self.flags.add(flag)

        def clear_flag(self, flag: str) -> None:
            self.flags.discard(flag)

        def add_optimization_profile(self, profile: Profile) -> None:
            self.profiles.append(profile)

        def create_timing_cache(self, content: bytes) -> Any:
            return SimpleNamespace(content=content, serialize=lambda: b"timings")

        def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
            self.cache = cache
            return bool(not cache.content or cache.content == b"timings")

    class Layer:
        def __init__(self, operator: str) -> None:
            self.type = "attention output" if operator == "Attention" else "another"

    class AttentionOutputLayer(Layer):
        @property
        def attention(self) -> Any:
            return self.__dict__.setdefault("_attention", SimpleNamespace(decomposable=False))

    class Network:
        def __init__(self, flags: int) -> None:
            self.flags, self.path = flags, ""
            self._inputs: list[Any] = []
            self.layers: list[Any] = []

        def read(self, path: str) -> None:
            self.path = path
            graph = onnx.load(path, load_external_data=False).graph
            self._inputs = list(graph.input)
            self.layers = [Layer(node.op_type) for node in graph.node]

        @property
        def num_inputs(self) -> int:
            return len(self._inputs)

        def get_input(self, index: int) -> Any:
            node = self._inputs[index]
            sizes = node.type.tensor_type.shape.dim
            return SimpleNamespace(
                name=node.name, shape=tuple(-1 if size.HasField("dim_param") else size.dim_value for size in sizes)
            )

        @property
        def num_layers(self) -> int:
            return len(self.layers)

        def get_layer(self, index: int) -> Layer:
            return self.layers[index]

    class Parser:
        num_errors = 1

        def __init__(self, network: Network, logger: _Logger) -> None:
            self._network = network

        def parse_from_file(self, path: str) -> bool:
            if b"unreadable" in Path(path).read_bytes()[:64]:
                return False
            self._network.read(path)
            return True

        def get_error(self, index: int) -> str:
            return "node 7: no importer"

    class Builder:
        def __init__(self, logger: _Logger) -> None:
            self.last: tuple[Network, Config] | None = None

        def create_network(self, flags: int) -> Network:
            return Network(flags)

        def create_builder_config(self) -> Config:
            return Config()

        def create_optimization_profile(self) -> Profile:
            return Profile()

        def build_serialized_network(self, network: Network, config: Config) -> bytes:
            module.built.append((network, config))
            if hasattr(config, "progress_monitor"):
                config.progress_monitor.phase_start("tactics", None, 2)
                config.progress_monitor.step_complete("tactics", 0)
                config.progress_monitor.phase_finish("tactics")
            return f"plan\n{network.path}\n{[profile.shapes for profile in config.profiles]!r}".encode()

    flags = {"EXPLICIT_BATCH": 0, **({"STRONGLY_TYPED": 1} if modern else {})}
    module = SimpleNamespace(
        __version__=version, ILogger=_Logger, Runtime=Runtime, Builder=Builder, OnnxParser=Parser,
        TensorIOMode=SimpleNamespace(INPUT="input", OUTPUT="output"),
        NetworkDefinitionCreationFlag=SimpleNamespace(**flags),
        MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"), BuilderFlag=Flags,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="ours"),
        LayerType=SimpleNamespace(**({"ATTENTION_OUTPUT": "attention output"} if modern else {})),
        IAttentionOutputLayer=AttentionOutputLayer,
        built=[],
    )  # fmt: skip
    if modern:
        module.IProgressMonitor = object
    return module
