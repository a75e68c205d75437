"""How many threads are worth having."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_DIRECTORY = Path("/sys/devices/system/cpu")
_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


def physical_cores(cpu_directory: Path = _CPU_DIRECTORY, quota_file: Path = _QUOTA_FILE) -> int:
    """Physical cores that this process may use: by its affinity, by its container's quota, and without siblings.

    A second thread on one core makes matrix products slower, and threads beyond a quota are stopped in mid-step.
    """
    try:
        logical = os.sched_getaffinity(0)
    except AttributeError:  # not on every system
        logical = set(range(os.cpu_count() or 1))
    cores = set()
    for number in logical:
        topology = cpu_directory / f"cpu{number}" / "topology"
        try:
            cores.add(
                ((topology / "physical_package_id").read_text().strip(), (topology / "core_id").read_text().strip())
            )
        except OSError:
            cores.add(("", str(number)))
    count = len(cores)
    try:
        quota, period = quota_file.read_text().split()[:2]
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        pass
    return max(1, count)
