"""The share of the machine that other processes used, from Linux's counters.

PyTorch's threads spin while they wait for each other. If cores are shared, its steps take many
times as long, and comparisons with it mean nothing.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["OthersLoad"]

_TICKS = os.sysconf("SC_CLK_TCK")


class OthersLoad:
    """Measures the load since its construction."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Starts counting; `pids` are our own processes."""
        self._pids = list(pids)
        self._wall, self._foreign = time.perf_counter(), self._foreign_seconds()

    def share(self) -> float:
        """Returns the share of all cores that others have used since then, in [0, 1]."""
        wall = time.perf_counter() - self._wall
        used = self._foreign_seconds() - self._foreign
        return min(1.0, max(0.0, used / (wall * (os.cpu_count() or 1))))

    def _foreign_seconds(self) -> float:
        line = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
        own = 0
        for pid in self._pids:
            # The name may contain spaces; the counters follow its closing bracket.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += int(fields[11]) + int(fields[12])
        return (user + nice + system + irq + softirq + steal - own) / _TICKS
