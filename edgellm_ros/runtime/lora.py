"""Low-rank adapters of one engine by name: loaded from PEFT folders, each sequence with its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from ..adapter_format import AdapterFormat
from ..errors import MisuseError, RefusalCode, RequestError
from ..json_values import shown
from .adapter_slots import AdapterSlots
from .adapter_tensors import AdapterTensors
from .peft_folder import AdapterWeights, bad_adapter, read_peft_folder


class Adapters:
    """Any thread may load, unload and look up, under a lock; rows belong to the thread that drives the runtime.

    There may be more adapters than places in the engine: their weights wait in host memory.
    """

    def __init__(self, form: AdapterFormat | None, tensors: AdapterTensors | None) -> None:
        self._form = form
        self._tensors = tensors
        self._weights: dict[str, AdapterWeights] = {}
        self._generations: dict[str, int] = {}  # times that a name was loaded
        self._slots = AdapterSlots(form.slots if form is not None else 0, self._fill)
        self._lock = threading.RLock()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are loaded."""
        return tuple(self._weights)

    def load(self, name: str, folder: Path | str) -> None:
        """Read an adapter; one of the same name is replaced unless a sequence uses it.

        :raises RequestError: the engine has no room for adapters, or the folder does not fit it.
        :raises MisuseError: a sequence uses the adapter of that name.
        """
        if not isinstance(name, str) or not name:
            raise bad_adapter(f"the name of an adapter is {shown(name)}; want non-empty text.")
        if self._form is None:
            raise RequestError(
                f"lora_weights has {shown(name)}, but this engine has no room for adapters; build it with --lora-rank.",
                RefusalCode.UNSUPPORTED,
            )
        weights = read_peft_folder(folder, self._form)
        with self._lock:
            self._check_unused(name)
            self._slots.forget(name)
            self._weights[name] = weights
            self._generations[name] = self._generations.get(name, 0) + 1

    def load_all(self, folders: Mapping[str, Path | str]) -> None:
        """Several; raises as ``load``."""
        if not isinstance(folders, Mapping):
            raise bad_adapter(f"lora_weights is {shown(folders)}; want folders by the names of their adapters.")
        for name, folder in folders.items():
            self.load(name, folder)

    def unload(self, name: str) -> None:
        """Forget an adapter.

        :raises RequestError: none of that name is loaded.
        :raises MisuseError: a sequence uses it.
        """
        with self._lock:
            if not isinstance(name, str) or name not in self._weights:
                raise self._unknown(name)
            self._check_unused(name)
            self._slots.forget(name)
            del self._weights[name]

    def _check_unused(self, name: str) -> None:
        if self._slots.users(name):
            raise MisuseError(f"adapter {name!r} is in use; wait until its sequences have ended.")

    def check(self, name: str) -> None:
        """:raises RequestError: an adapter is named that is not loaded."""
        if name and name not in self._weights:
            raise self._unknown(name)

    def _unknown(self, name: str) -> RequestError:
        known = ", ".join(self._weights) or "none"
        return RequestError(
            f"adapter {shown(name)} is not loaded (there is {known}); load it, or leave lora_weights_name empty.",
            RefusalCode.UNKNOWN_ADAPTER,
        )

    def seat(self, name: str, row: int) -> None:
        """A sequence that uses the adapter gets a row; ``release`` when it leaves.

        :raises RequestError: it is not loaded, or all places are in use.
        """
        with self._lock:
            self.check(name)
            slot = self._slots.acquire(name)
        try:
            if self._tensors is not None:
                self._tensors.set_row(row, slot)
        except BaseException:
            self.release(name)
            raise

    def available(self, name: str) -> bool:
        """Whether a sequence that uses the adapter could be seated now."""
        with self._lock:
            return self._slots.available(name)

    def generation(self, name: str) -> int:
        """How often an adapter of that name was loaded: what was computed with an earlier one is not its own."""
        return self._generations.get(name, 0)

    def release(self, name: str) -> None:
        """A sequence that used the adapter has left its row."""
        with self._lock:
            self._slots.release(name)

    def release_all(self) -> None:
        """The batch is closed."""
        with self._lock:
            self._slots.release_all()

    def _fill(self, name: str, slot: int) -> None:
        if self._tensors is not None:
            self._tensors.load(self._weights[name], slot)
