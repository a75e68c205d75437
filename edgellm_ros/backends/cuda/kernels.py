"""Kernels from ``.cu`` sources: compiled at run time for the GPU at hand, cached on disk, launched by name."""

from __future__ import annotations

import ctypes
import functools
import struct
from pathlib import Path
from typing import Any

from ...errors import BackendError
from .device import Device
from .kernel_cache import KernelCache
from .packages import load_nvrtc

# One letter an argument: P address, i 32 bits, f float; and structs by value: A arrays, T tables, R rows, S scratch,
# O orders, V pivots.
SIGNATURES = {
    "kernels.cu": {
        "gather_float32": "PPPPiif",
        "gather_float16": "PPPPiif",
        "gather_bfloat16": "PPPPiif",
        "gather_int8": "PPPPiif",
        "gather_rows": "PPPii",
        "splice_rows": "PPPii",
        "rope_tables": "PPPPif",
        "advance": "Ai",
        "euler_step": "PPfi",
        "copy_segments": "P",
        "scatter_positions": "PPPiii",
        "lay_out_16": "Pii",
        "lay_out_32": "Pii",
    },
    "sampling.cu": {
        "adjust_logits": "PTRSi",
        "weigh": "PTRSi",
        "mark_prompt": "PPii",
        "set_bias": "PPPi",
    },
    "pruning.cu": {
        "row_measures": "PPPPPii",
        "choose_pivots": "PPPVi",
        "pivot_cosines": "PPPPVPi",
        "choose_rows": "PPVPPi",
    },
    "images.cu": {
        "resample": "PPPPiiiii",
        "rearrange_bytes": "PPOi",
        "rearrange_numbers": "PPOi",
        "letterbox": "PPPPPPiiiiiiii",
    },
    "pick.cu": {"pick": "PTRSiPPPi"},
}
# what is compiled in front of a source
_BEFORE = {"sampling.cu": ("sampling.cuh",), "pick.cu": ("sampling.cuh", "select.cuh")}
# ``struct`` code, bytes and alignment of an argument
_ARGUMENTS = {
    "P": ("Q", 8, 8), "i": ("i", 4, 4), "f": ("f", 4, 4),
    "A": ("48s", 48, 8), "T": ("40s", 40, 8), "R": ("64s", 64, 1),
    "S": ("32s", 32, 8), "O": ("64s", 64, 4), "V": ("24s", 24, 8),
}  # fmt: skip
OPTIONS = ("--std=c++17", "--fmad=false", "--generate-line-info")


class Compiler:
    """The run-time compiler: ``compile`` gives machine code, or PTX where it does not know the GPU yet."""

    def __init__(self, module: Any | None = None) -> None:
        self._nvrtc = load_nvrtc() if module is None else module

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            result = getattr(self._nvrtc, name)(*arguments)
        except RuntimeError as error:  # the library itself cannot be opened
            raise BackendError(
                f"CUDA's run-time compiler does not load ({error}); install it with 'pip install nvidia-cuda-nvrtc' "
                "(CUDA 13) or 'nvidia-cuda-nvrtc-cu12'."
            ) from None
        if result[0] != 0:
            raise BackendError(f"CUDA's run-time compiler failed in {name}: {getattr(result[0], 'name', result[0])}.")
        return result[1] if len(result) == 2 else result[1:]

    @functools.cached_property
    def version(self) -> str:
        """Major and minor."""
        major, minor = self._call("nvrtcVersion")
        return f"nvrtc {major}.{minor}"

    def compile(self, name: str, source: str, architecture: str) -> bytes:
        """Binary for ``architecture`` (``sm_90``).

        :raises BackendError: the compiler is missing, or refused the source; its message is quoted.
        """
        number = int(architecture.removeprefix("sm_"))
        supported = [int(value) for value in self._call("nvrtcGetSupportedArchs")]
        known = number in supported
        target = architecture if known else f"compute_{max([value for value in supported if value < number] or [0])}"
        if target == "compute_0":
            raise BackendError(f"{self.version} cannot compile for {architecture}; install another version.")
        program = self._call("nvrtcCreateProgram", source.encode(), name.encode(), 0, [], [])
        options = [f"--gpu-architecture={target}".encode(), *(option.encode() for option in OPTIONS)]
        try:
            self._call("nvrtcCompileProgram", program, len(options), options)
        except BackendError:
            raise BackendError(f"{name} does not compile for {target}: {self._log(program)}") from None
        kind = "CUBIN" if known else "PTX"
        binary: bytes = b" " * self._call(f"nvrtcGet{kind}Size", program)
        self._call(f"nvrtcGet{kind}", program, binary)
        self._call("nvrtcDestroyProgram", program)
        return binary

    def _log(self, program: Any) -> str:
        log: bytes = b" " * self._call("nvrtcGetProgramLogSize", program)
        self._call("nvrtcGetProgramLog", program, log)
        return log.rstrip(b"\0 \n").decode(errors="replace")[:2000]


class Kernel:
    """One function; its arguments are packed into memory that is kept, so a launch allocates nothing."""

    def __init__(self, device: Device, function: Any, signature: str) -> None:
        self._device = device
        self._function = function
        codes, offsets = _layout(signature)
        self._struct = struct.Struct(codes)
        self._values = ctypes.create_string_buffer(self._struct.size + 16)
        self._start = -ctypes.addressof(self._values) % 16
        base = ctypes.addressof(self._values) + self._start
        self._pointers = (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))
        self._pointers_address = ctypes.addressof(self._pointers)

    def launch(self, grid: tuple[int, int, int], threads: int, *arguments: Any, shared_bytes: int = 0) -> None:
        """Enqueue one run. Nothing happens for an empty grid."""
        if 0 in grid:
            return
        device = self._device
        device.enter()
        self._struct.pack_into(self._values, self._start, *arguments)
        device.driver.call(
            "cuLaunchKernel", self._function, *grid, threads, 1, 1, shared_bytes, device.stream,
            self._pointers_address, 0,
        )  # fmt: skip

    def allow_shared(self, size: int) -> None:
        """Let a block have ``size`` bytes of shared memory beside its own."""
        driver = self._device.driver
        kind = driver.module.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.call("cuFuncSetAttribute", self._function, kind, size)


def _layout(signature: str) -> tuple[str, list[int]]:
    """A ``struct`` format without padding of its own, and where each argument begins in it."""
    codes, offsets, end = ["="], [], 0
    for letter in signature:
        code, size, alignment = _ARGUMENTS[letter]
        padding = -end % alignment
        codes.append(f"{padding}x{code}" if padding else code)
        offsets.append(end + padding)
        end += padding + size
    return "".join(codes), offsets


class Kernels:
    """All kernels of this package on one device, each compiled source loaded when one of its kernels is first asked."""

    def __init__(self, device: Device, cache: KernelCache | None = None, compiler: Compiler | None = None) -> None:
        self._device = device
        self._cache = cache or KernelCache()
        self._compiler = compiler
        self._modules: dict[str, Any] = {}
        self._kernels: dict[str, Kernel] = {}

    def __getitem__(self, name: str) -> Kernel:
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = self._kernels[name] = self._load(name)
        return kernel

    def _load(self, name: str) -> Kernel:
        file = next(file for file, functions in SIGNATURES.items() if name in functions)
        self._device.enter()
        call = self._device.driver.call
        module = self._modules.get(file)
        if module is None:
            image = ctypes.create_string_buffer(self._binary(file))  # ends with a zero, as PTX must
            module = self._modules[file] = call("cuModuleLoadData", ctypes.addressof(image))
        function = call("cuModuleGetFunction", module, name.encode())
        return Kernel(self._device, function, SIGNATURES[file][name])

    def _binary(self, file: str) -> bytes:
        names = (*_BEFORE.get(file, ()), file)
        source = "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in names)
        self._compiler = self._compiler or Compiler()
        compiler, architecture = self._compiler, self._device.architecture
        key = KernelCache.key(source, architecture, OPTIONS, compiler.version)
        return self._cache.get(key, lambda: compiler.compile(file, source, architecture))

    def close(self) -> None:
        """Unload; kernels made before are of no use then."""
        self._kernels.clear()
        modules, self._modules = self._modules, {}
        if not self._device.driver.lost:
            for module in modules.values():
                self._device.driver.call("cuModuleUnload", module)
