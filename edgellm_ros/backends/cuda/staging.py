"""Pinned host memory: the way in for host arrays that may change at once, and the way out for what is read back."""

from __future__ import annotations

import ctypes
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MisuseError

if TYPE_CHECKING:
    from .device import Device

_HALF_BYTES = 1 << 19
_ALIGNMENT = 16
_MOST_SLOTS = 8  # of one size that are kept for later


class PinnedMemory:
    """``size`` bytes of host memory that the GPU reads and writes without the CPU."""

    def __init__(self, device: Device, size: int) -> None:
        self._driver = device.driver
        self.size = size
        self.address = int(self._driver.call("cuMemHostAlloc", size, 0))

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """A view of its start."""
        size = math.prod(shape) * dtype.itemsize
        block = (ctypes.c_uint8 * size).from_address(self.address)
        return np.ctypeslib.as_array(block).view(dtype).reshape(shape)

    def close(self) -> None:
        """Free it; a second call does nothing."""
        if self.address and not self._driver.lost:
            self._driver.call("cuMemFreeHost", self.address)
        self.address = 0


class StagingRing:
    """Two halves: one is filled while copies from the other may still be under way."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._events: list[Any] = []
        flags = device.driver.module.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        with ExitStack() as undo:
            self._memory = PinnedMemory(device, 2 * _HALF_BYTES)
            undo.callback(self.close)
            for _ in range(2):
                self._events.append(device.driver.call("cuEventCreate", flags))
            undo.pop_all()
        self._half = 0
        self._used = 0

    def write(self, address: int, values: np.ndarray) -> None:
        """Enqueue a copy of a contiguous array to ``address``."""
        source, size, offset = values.ctypes.data, values.nbytes, 0
        call, stream = self._device.driver.call, self._device.stream
        while offset < size:
            if self._used >= _HALF_BYTES:
                self._switch()
            piece = min(size - offset, _HALF_BYTES - self._used)
            place = self._memory.address + self._half * _HALF_BYTES + self._used
            ctypes.memmove(place, source + offset, piece)
            call("cuMemcpyHtoDAsync", address + offset, place, piece, stream)
            self._used += -(-piece // _ALIGNMENT) * _ALIGNMENT
            offset += piece

    def _switch(self) -> None:
        call = self._device.driver.call
        call("cuEventRecord", self._events[self._half], self._device.stream)
        self._half ^= 1
        self._used = 0
        call("cuEventSynchronize", self._events[self._half])

    def close(self) -> None:
        """Free it; the stream must be idle."""
        events, self._events = self._events, []
        for event in () if self._device.driver.lost else events:
            self._device.driver.call("cuEventDestroy", event)
        self._memory.close()


class _Slot:
    """Pinned memory and the event that says when it is filled."""

    __slots__ = ("event", "memory")

    def __init__(self, device: Device, size: int) -> None:
        self.memory = PinnedMemory(device, size)
        flags = device.driver.module.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        self.event = device.driver.call("cuEventCreate", flags)


class DeviceReadback:
    """A ``Readback``: a copy into pinned memory, from which ``wait`` makes the caller's array."""

    __slots__ = ("_device", "_dtype", "_shape", "_slot", "_slots", "_values")

    def __init__(
        self, device: Device, slots: ReadbackSlots, slot: _Slot, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._device = device
        self._slots = slots
        self._slot: _Slot | None = slot
        self._shape = shape
        self._dtype = dtype
        self._values: np.ndarray | None = None

    def ready(self) -> bool:
        """Whether ``wait`` would return at once."""
        if self._slot is None:
            return True
        self._device.enter()
        driver = self._device.driver
        status = driver.module.cuEventQuery(self._slot.event)[0]
        if getattr(status, "name", "") == "CUDA_ERROR_NOT_READY":
            return False
        if status != 0:
            driver.fail("cuEventQuery", status)
        return True

    def wait(self) -> np.ndarray:
        """The host values; they belong to the caller.

        :raises BackendError: the work that produces them failed.
        """
        if self._values is None:
            if self._slot is None:
                raise MisuseError("this readback failed before; run the step again.")
            slot, self._slot = self._slot, None
            self._device.enter()
            self._device.driver.call("cuEventSynchronize", slot.event)
            self._values = slot.memory.array(self._shape, self._dtype).copy()
            self._slots.give_back(slot)
        return self._values

    def __del__(self) -> None:
        # Dropped without being waited for: the slot stays with its pool, which frees it when the device is closed.
        if self._slot is not None:
            self._slots.abandon(self._slot)


class ReadbackSlots:
    """Pinned slots by size, so that a step after the first allocates nothing."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[int, list[_Slot]] = {}
        self._abandoned: list[_Slot] = []
        self._closed = False

    def read(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceReadback:
        """Enqueue a copy of device memory to the host."""
        if self._device.recording:
            raise MisuseError("values were read back while a step is recorded; read them after it ran.")
        size = math.prod(shape) * dtype.itemsize
        kept = max(64, 1 << (size - 1).bit_length()) if size else 64
        slots = self._free.setdefault(kept, [])
        self._collect()
        slot = slots.pop() if slots else _Slot(self._device, kept)
        call, stream = self._device.driver.call, self._device.stream
        if size:
            call("cuMemcpyDtoHAsync", slot.memory.address, address, size, stream)
        call("cuEventRecord", slot.event, stream)
        return DeviceReadback(self._device, self, slot, shape, dtype)

    def give_back(self, slot: _Slot) -> None:
        """Keep a slot for the next copy of its size."""
        slots = self._free.setdefault(slot.memory.size, [])
        if len(slots) < _MOST_SLOTS and not self._closed:
            slots.append(slot)
        else:
            self._destroy(slot)

    def abandon(self, slot: _Slot) -> None:
        """Take a slot whose copy may still be under way."""
        self._abandoned.append(slot)

    def _collect(self) -> None:
        """Bring abandoned slots back; safe because a later copy into them stands behind the earlier in the stream."""
        while self._abandoned:
            self.give_back(self._abandoned.pop())

    def _destroy(self, slot: _Slot) -> None:
        if not self._device.driver.lost:
            self._device.driver.call("cuEventDestroy", slot.event)
        slot.memory.close()

    def close(self) -> None:
        """Free every slot; the stream must be idle."""
        self._closed = True
        self._collect()
        for slots in self._free.values():
            for slot in slots:
                self._destroy(slot)
        self._free.clear()
