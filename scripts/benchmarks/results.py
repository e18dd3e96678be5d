"""The measurements of one workload."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from benchmarks.workloads import Workload
from dpjax.cli.bench import ratio

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """A workload's measurements.

    Attributes:
        workload: the workload.
        parameters: the number of trained parameters.
        seconds: for each variant, the seconds per step in each turn.
        others: the share of all cores that other processes used during the measurement.
        compile_seconds: for each variant in JAX.
        temp_bytes: for each variant in JAX.
        left_out: the variants that did not run, and why.
    """

    workload: Workload
    parameters: int
    seconds: dict[str, list[float]]
    others: float
    compile_seconds: dict[str, float] = field(default_factory=dict)
    temp_bytes: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def milliseconds(self, variant: str) -> float:
        """Returns the median over the turns of a step's time."""
        return 1e3 * statistics.median(self.seconds[variant])

    def time_ratio(self, above: str, below: str) -> float | None:
        """Returns how many times as long `above` takes; None if one of them did not run."""
        if above in self.seconds and below in self.seconds:
            return ratio(self.seconds[above], self.seconds[below])
        return None

    def memory_ratio(self, above: str, below: str) -> float | None:
        """Returns how many times as much temporary memory `above` needs, or None."""
        if above in self.temp_bytes and below in self.temp_bytes:
            return self.temp_bytes[above] / self.temp_bytes[below]
        return None

    def fastest(self, prefix: str) -> str | None:
        """Returns the fastest of the variants whose names have this prefix, or None."""
        found = [name for name in self.seconds if name.startswith(prefix)]
        return min(found, key=self.milliseconds, default=None)

    def plain(self) -> dict[str, Any]:
        """Returns all results as plain data, for a JSON file."""
        return {
            "workload": self.workload.name,
            "batch": self.workload.batch,
            "parameters": self.parameters,
            "seconds": self.seconds,
            "others": self.others,
            "compile_seconds": self.compile_seconds,
            "temp_bytes": self.temp_bytes,
            "left_out": self.left_out,
        }
