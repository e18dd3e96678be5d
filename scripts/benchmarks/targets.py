"""The ghost engine's performance targets, and whether they were met."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import Result
from benchmarks.tables import BUSY, TITLES, markdown

__all__ = ["target_table"]


@dataclass(frozen=True)
class Target:
    """A measured number and its limit: at most `limit`, or at least that if `at_least` is set."""

    workload: str
    title: str
    measured: Callable[[Result], float | None]
    limit: float
    at_least: bool = False

    def row(self, result: Result) -> list[str] | None:
        """Returns the table's row; None if the number was not measured."""
        value = self.measured(result)
        if value is None:
            return None
        reached = value >= self.limit if self.at_least else value <= self.limit
        limit = f"{'>=' if self.at_least else '<='} {self.limit:g}"
        return [self.workload, self.title, limit, f"{value:.2f}", "yes" if reached else "no"]


def _beside_non_private(result: Result) -> float | None:
    return result.time_ratio("ghost", "jax")


def _memory(result: Result) -> float | None:
    return result.memory_ratio("ghost", "jax")


def _faster_than(peer: str) -> Callable[[Result], float | None]:
    return lambda result: result.time_ratio(peer, "ghost")


def _faster_than_opacus(result: Result) -> float | None:
    best = result.fastest("opacus_")
    return None if best is None else result.time_ratio(best, "ghost")


def _targets() -> list[Target]:
    found = []
    limits = {"cnn": 1.3, "resnet18-16": 1.15, "resnet18-64": 1.15, "encoder": 1.3, "lstm": 2.0}
    for name, limit in limits.items():
        found.append(Target(name, "time / not private", _beside_non_private, limit))
    for name, limit in {"resnet18-16": 1.3, "resnet18-64": 1.3, "cnn": 1.0, "encoder": 1.0}.items():
        title = "x faster than Opacus' fastest mode"
        found.append(Target(name, title, _faster_than_opacus, limit, at_least=True))
    for name in ("resnet18-16", "resnet18-64"):
        for peer in ("jax_privacy", "optax"):
            title = f"x faster than {TITLES[peer]}"
            found.append(Target(name, title, _faster_than(peer), 2.3, at_least=True))
    found.append(Target("resnet18-64", "temporary memory / not private", _memory, 1.5))
    return found


def target_table(results: list[Result]) -> str:
    """Returns the table of the targets that were measured, or a sentence if none was."""
    by_name = {result.workload.name: result for result in results}
    rows = [
        row
        for target in _targets()
        if target.workload in by_name
        for row in [target.row(by_name[target.workload])]
        if row is not None
    ]
    if not rows:
        return "No target was measured.\n"
    header = ["model", "the ghost engine's", "target", "measured", "reached"]
    shared = [name for name, result in by_name.items() if result.others >= BUSY]
    warning = f"\nNOT TO BE TRUSTED: others used the cores during {', '.join(shared)}.\n"
    return f"## Targets\n\n{markdown(header, rows)}\n{warning if shared else ''}"
