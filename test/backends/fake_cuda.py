# ruff: noqa: N802, N815  (the names are the driver's)
"""A CUDA driver and its compiler played in host memory, so that everything above them is tested without a GPU.

Device memory is host memory, the stream runs at once, a graph is the list of what was enqueued while it was recorded,
and a kernel is its NumPy twin, fed with the arguments that the real one would get.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import fake_kernels

from edgellm_ros.backends.cuda.kernels import SIGNATURES

_SIZES = {"P": "Q", "i": "i", "f": "f", "A": "48s", "T": "40s", "R": "64s", "S": "32s", "O": "64s", "V": "24s"}


class Status(IntEnum):
    """Results of driver calls."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


class FakeDriver:
    """The driver API of one GPU with ``memory`` bytes; what a test may set is said below."""

    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1))
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=SimpleNamespace(value=2))
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=0, CU_GRAPH_NODE_TYPE_HOST=3)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=1, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=2,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=3, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED=4,
    )  # fmt: skip

    def __init__(self, memory: int = 1 << 30, *, pools: bool = True, version: int = 13000, devices: int = 1) -> None:
        self.total = memory
        self.version, self.devices = version, devices
        self._attributes = {1: 9, 2: 0, 3: 132, 4: int(pools)}
        self.blocks: dict[int, Any] = {}  # device memory in use
        self.pinned: dict[int, Any] = {}
        self.contexts = self.streams = 0
        self.events = self.graphs = 0  # alive
        self.host_calls: list[Callable[[], None]] = []  # that were recorded
        self.launches: list[str] = []  # names of kernels that ran
        self.fail: dict[str, Status] = {}  # calls that fail from now on
        self._next = 1000
        self._recording: list[Callable[[], None]] | None = None
        self._invalid = False
        self._executables: dict[int, list[Callable[[], None]]] = {}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name in object.__getattribute__(self, "fail"):
            status = object.__getattribute__(self, "fail")[name]
            return lambda *arguments: (status, None)
        return object.__getattribute__(self, name)

    def _handle(self) -> int:
        self._next += 1
        return self._next

    def _do(self, action: Callable[[], None]) -> tuple[Any, ...]:
        if self._recording is not None:
            self._recording.append(action)
        else:
            action()
        return (Status.CUDA_SUCCESS,)

    # start, context

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS if self.devices else Status.CUDA_ERROR_NO_DEVICE,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.version

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.devices

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, ordinal

    def cuDeviceGetAttribute(self, kind: int, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self._attributes[kind]

    def cuDeviceGetName(self, size: int, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, b"Pretend GPU\0\0"

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        self.contexts += 1
        return Status.CUDA_SUCCESS, 77

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        self.contexts -= 1
        return (Status.CUDA_SUCCESS,)

    def cuCtxSetCurrent(self, context: Any) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        self.streams += 1
        return Status.CUDA_SUCCESS, 5

    def cuStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        self.streams -= 1
        return (Status.CUDA_SUCCESS,)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        if self._recording is not None:
            self._invalid = True
            return (Status.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        return (Status.CUDA_SUCCESS,)

    # memory

    def cuDeviceGetDefaultMemPool(self, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 6

    def cuMemPoolTrimTo(self, pool: int, size: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        if size > self.total - self.used:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, 0
        block = (ctypes.c_uint8 * (size + 64))()
        ctypes.memset(block, 0xA5, size + 64)  # memory is not zero of itself
        address = -(-ctypes.addressof(block) // 64) * 64
        self.blocks[address] = (block, size)
        return Status.CUDA_SUCCESS, address

    def cuMemAllocFromPoolAsync(self, size: int, pool: int, stream: int) -> tuple[Any, ...]:
        return self.cuMemAlloc(size)

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        del self.blocks[address]
        return (Status.CUDA_SUCCESS,)

    def cuMemFreeAsync(self, address: int, stream: int) -> tuple[Any, ...]:
        return self.cuMemFree(address)

    @property
    def used(self) -> int:
        return sum(size for _, size in self.blocks.values())

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.total - self.used, self.total

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        block = (ctypes.c_uint8 * size)()
        self.pinned[ctypes.addressof(block)] = block
        return Status.CUDA_SUCCESS, ctypes.addressof(block)

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        del self.pinned[address]
        return (Status.CUDA_SUCCESS,)

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._do(lambda: ctypes.memset(address, value, size))

    def _copy(self, destination: int, source: int, size: int) -> tuple[Any, ...]:
        return self._do(lambda: ctypes.memmove(destination, source, size))

    def cuMemcpyHtoDAsync(self, destination: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy(destination, source, size)

    def cuMemcpyDtoHAsync(self, destination: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy(destination, source, size)

    def cuMemcpyDtoDAsync(self, destination: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy(destination, source, size)

    # events

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        self.events += 1
        return Status.CUDA_SUCCESS, self._handle()

    def cuEventDestroy(self, event: int) -> tuple[Any, ...]:
        self.events -= 1
        return (Status.CUDA_SUCCESS,)

    def cuEventRecord(self, event: int, stream: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuEventSynchronize(self, event: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuEventQuery(self, event: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 0.25

    # graphs

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[Any, ...]:
        self._recording, self._invalid = [], False
        return (Status.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        actions, self._recording = self._recording, None
        if self._invalid or actions is None:
            return Status.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 0
        handle = self._handle()
        self._executables[handle] = actions
        return Status.CUDA_SUCCESS, handle

    def cuGraphGetNodes(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        nodes = self._executables[graph]
        return Status.CUDA_SUCCESS, nodes[:count], count or len(nodes)

    def cuGraphNodeGetType(self, node: Any) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 3 if node in self.host_calls else 0

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        handle = self._handle()
        self._executables[handle] = self._executables[graph]
        self.graphs += 1
        return Status.CUDA_SUCCESS, handle

    def cuGraphDestroy(self, graph: int) -> tuple[Any, ...]:
        del self._executables[graph]
        return (Status.CUDA_SUCCESS,)

    def cuGraphExecDestroy(self, graph: int) -> tuple[Any, ...]:
        del self._executables[graph]
        self.graphs -= 1
        return (Status.CUDA_SUCCESS,)

    def cuGraphLaunch(self, graph: int, stream: int) -> tuple[Any, ...]:
        for action in self._executables[graph]:
            action()
        return (Status.CUDA_SUCCESS,)

    def enqueue(self, action: Callable[[], None], *, host: bool = False) -> None:
        """What a library does on the stream; ``host``: it is a call of the host."""
        if host and self._recording is not None:
            self.host_calls.append(action)
        self._do(action)

    # kernels

    def cuModuleLoadData(self, address: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, ctypes.string_at(address).decode()

    def cuModuleUnload(self, module: str) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[Any, ...]:
        assert name.decode() in SIGNATURES[module], f"{name!r} is not in {module}"
        return Status.CUDA_SUCCESS, (module, name.decode())

    def cuFuncSetAttribute(self, function: Any, kind: int, value: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuLaunchKernel(self, function: tuple[str, str], *rest: Any) -> tuple[Any, ...]:
        grid, threads, parameters = rest[:3], rest[3:6], rest[8]
        assert math.prod(threads) <= 1024 and max(grid[1:]) < 65536
        values: list[Any] = []
        signature = SIGNATURES[function[0]][function[1]]
        places = (ctypes.c_void_p * len(signature)).from_address(parameters)
        for letter, place in zip(signature, places, strict=True):
            code = _SIZES[letter]
            assert place is not None
            values.append(struct.unpack(f"={code}", ctypes.string_at(place, struct.calcsize(f"={code}")))[0])
        twin = getattr(fake_kernels, function[1])

        def run() -> None:
            self.launches.append(function[1])
            twin(grid, *values)

        return self._do(run)


class FakeCompiler:
    """The run-time compiler: a "binary" is the name of its source."""

    def __init__(self, version: tuple[int, int] = (13, 0)) -> None:
        self.version = version
        self.compiled: list[tuple[str, bytes]] = []  # name, target
        self._log = b""

    def nvrtcVersion(self) -> tuple[Any, ...]:
        return (0, *self.version)

    def nvrtcGetSupportedArchs(self) -> tuple[Any, ...]:
        return 0, [75, 80, 90]

    def nvrtcCreateProgram(self, source: bytes, name: bytes, count: int, headers: Any, names: Any) -> tuple[Any, ...]:
        return 0, (source, name.decode())

    def nvrtcCompileProgram(self, program: tuple[bytes, str], count: int, options: list[bytes]) -> tuple[Any, ...]:
        if b"syntax error" in program[0]:
            self._log = b"kernel.cu(1): error: expected a declaration"
            return (SimpleNamespace(name="NVRTC_ERROR_COMPILATION"),)
        self.compiled.append((program[1], options[0]))
        return (0,)

    def _size(self, program: tuple[bytes, str]) -> tuple[Any, ...]:
        return 0, len(program[1])

    def _fill(self, program: tuple[bytes, str], binary: bytes) -> tuple[Any, ...]:
        ctypes.memmove(binary, program[1].encode(), len(program[1]))
        return (0,)

    nvrtcGetCUBINSize = nvrtcGetPTXSize = _size
    nvrtcGetCUBIN = nvrtcGetPTX = _fill

    def nvrtcGetProgramLogSize(self, program: Any) -> tuple[Any, ...]:
        return 0, len(self._log) + 1

    def nvrtcGetProgramLog(self, program: Any, log: bytes) -> tuple[Any, ...]:
        ctypes.memmove(log, self._log, len(self._log))
        return (0,)

    def nvrtcDestroyProgram(self, program: Any) -> tuple[Any, ...]:
        return (0,)
