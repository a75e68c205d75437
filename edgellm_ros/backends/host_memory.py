"""Memory of the machine and of this process, as the system tells."""

from __future__ import annotations

from pathlib import Path


def _bytes_named(name: str, file: str) -> int | None:
    """The line ``name`` of a file of /proc that counts in kB; None where there is none."""
    try:
        for line in Path(file).read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def available_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say."""
    return _bytes_named("MemAvailable", "/proc/meminfo")


def resident_memory() -> int | None:
    """Bytes of this process that lie in memory; None where the system does not say."""
    return _bytes_named("VmRSS", "/proc/self/status")
