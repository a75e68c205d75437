"""One GPU: its context, one stream, one memory pool and kernels.

One thread uses a device at a time. The context is made current for whichever thread that is, so a runtime may be
built in one thread and driven in another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ...errors import MisuseError
from .driver import Driver
from .staging import ReadbackSlots, StagingRing

_MINIMUM = 16  # bytes; an empty tensor still has an address
_current = threading.local()  # the device whose context is current in each thread


class Device:
    """The GPU with number ``ordinal``; ``architecture`` is as compilers name it (``sm_90``).

    :raises BackendError: no driver, no GPU, or one that this driver cannot use.
    """

    def __init__(self, ordinal: int = 0, driver: Driver | None = None) -> None:
        self.driver = driver or Driver()
        self.driver.start()
        call = self.driver.call
        self.ordinal = ordinal
        self._device = call("cuDeviceGet", ordinal)
        major = self.driver.attribute(self._device, "COMPUTE_CAPABILITY_MAJOR")
        minor = self.driver.attribute(self._device, "COMPUTE_CAPABILITY_MINOR")
        self.architecture = f"sm_{major}{minor}"
        self.multiprocessors = self.driver.attribute(self._device, "MULTIPROCESSOR_COUNT")
        self.name = bytes(call("cuDeviceGetName", 96, self._device)).split(b"\0")[0].decode(errors="replace")
        self.recording = False  # a step is being recorded: nothing may be allocated or written from the host
        self._later: list[int] = []  # what was let go of meanwhile
        self._closed = False
        self._allocations: dict[int, tuple[int, str]] = {}  # size and what it is for
        with ExitStack() as undo:
            self._context = call("cuDevicePrimaryCtxRetain", self._device)
            undo.callback(self._give_back, "cuDevicePrimaryCtxRelease", self._device)
            undo.callback(setattr, _current, "device", None)
            self.enter()
            self.stream = call("cuStreamCreate", self.driver.module.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
            undo.callback(self._give_back, "cuStreamDestroy", self.stream)
            pools = self.driver.attribute(self._device, "MEMORY_POOLS_SUPPORTED")
            self._pool = call("cuDeviceGetDefaultMemPool", self._device) if pools else None
            self._staging = StagingRing(self)
            self._readbacks = ReadbackSlots(self)
            undo.pop_all()

    def _give_back(self, name: str, handle: Any) -> None:
        if not self.driver.lost:
            self.driver.call(name, handle)

    @property
    def stream_address(self) -> int:
        """The stream as a number, for libraries that take one."""
        return int(self.stream)

    def enter(self) -> None:
        """Make the context current in this thread.

        :raises MisuseError: the device was closed.
        """
        if getattr(_current, "device", None) is not self:
            if self._closed:
                raise MisuseError("this GPU backend is closed; open a new one.")
            self.driver.call("cuCtxSetCurrent", self._context)
            _current.device = self

    # memory

    def allocate(self, size: int, *, zero: bool = True, kind: str = "other") -> int:
        """Address of ``size`` bytes; ``kind`` says what for.

        :raises BackendError: out of memory.
        :raises MisuseError: asked for while a step is being recorded.
        """
        self.enter()
        if self.recording:
            raise MisuseError("memory was asked for while a step is recorded; allocate before recording.")
        size = max(size, _MINIMUM)
        if self._pool is None:
            address = int(self.driver.call("cuMemAlloc", size))
        else:
            address = int(self.driver.call("cuMemAllocFromPoolAsync", size, self._pool, self.stream))
        self._allocations[address] = (size, kind)
        if zero:
            self.driver.call("cuMemsetD8Async", address, 0, size, self.stream)
        return address

    def free(self, address: int) -> None:
        """Give memory back once the stream is done with it; unknown addresses and a lost device are left alone."""
        if address not in self._allocations or self._closed or self.driver.lost:
            return
        if self.recording:
            self._later.append(address)
            return
        del self._allocations[address]
        self.enter()
        if self._pool is None:
            self.synchronize()
            self.driver.call("cuMemFree", address)
        else:
            self.driver.call("cuMemFreeAsync", address, self.stream)

    def end_recording(self) -> None:
        """Free what was let go of while a step was recorded."""
        self.recording = False
        later, self._later = self._later, []
        for address in later:
            self.free(address)

    def allocated(self, kind: str | None = None) -> int:
        """Bytes in use through this object, for one purpose or all."""
        return sum(size for size, purpose in self._allocations.values() if kind in (None, purpose))

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device; what the pool keeps for later counts as used."""
        self.enter()
        free, total = self.driver.call("cuMemGetInfo")
        return int(free), int(total)

    def trim(self) -> None:
        """Wait, and give what the pool keeps back to the system."""
        self.synchronize()
        if self._pool is not None:
            self.driver.call("cuMemPoolTrimTo", self._pool, 0)

    # traffic, all enqueued on the stream

    def write(self, address: int, values: np.ndarray) -> None:
        """Copy host ``values`` to the device; the array may be changed at once."""
        self.enter()
        if self.recording:
            raise MisuseError("host values were written while a step is recorded; write them before it runs.")
        self._staging.write(address, np.ascontiguousarray(values))

    def read(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A ``Readback`` of device memory."""
        self.enter()
        return self._readbacks.read(address, shape, dtype)

    def copy(self, source: int, destination: int, size: int) -> None:
        """Copy ``size`` bytes on the device."""
        self.enter()
        if size:
            self.driver.call("cuMemcpyDtoDAsync", destination, source, size, self.stream)

    def clear(self, address: int, size: int) -> None:
        """Zero ``size`` bytes."""
        self.enter()
        if size:
            self.driver.call("cuMemsetD8Async", address, 0, size, self.stream)

    def synchronize(self) -> None:
        """Wait for the stream.

        :raises BackendError: work on it failed.
        """
        self.enter()
        self.driver.call("cuStreamSynchronize", self.stream)

    @contextmanager
    def timing(self) -> Iterator[list[float]]:
        """Device time of the work enqueued inside, in seconds, in the list that it gives once the block has ended."""
        self.enter()
        call = self.driver.call
        start, end = (call("cuEventCreate", 0) for _ in range(2))
        seconds: list[float] = []
        try:
            call("cuEventRecord", start, self.stream)
            yield seconds
            call("cuEventRecord", end, self.stream)
            call("cuEventSynchronize", end)
            seconds.append(float(call("cuEventElapsedTime", start, end)) / 1e3)
        finally:
            for event in (start, end):
                call("cuEventDestroy", event)

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        if self._closed:
            return
        if not self.driver.lost:
            self.synchronize()
            for address in list(self._allocations):
                self.free(address)
            self._staging.close()
            self._readbacks.close()
            self.trim()
            self.driver.call("cuStreamDestroy", self.stream)
            self.driver.call("cuCtxSetCurrent", None)
        self._closed = True
        _current.device = None
        self._give_back("cuDevicePrimaryCtxRelease", self._device)
