"""How temporary memory grows with the batch, by XLA's own analysis; runs nothing."""

from benchmarks.jax_runner import compile_step
from benchmarks.jax_variants import LeftOut
from benchmarks.problem import problem
from benchmarks.tables import TITLES, markdown
from benchmarks.workloads import workloads

__all__ = ["BATCHES", "growth", "growth_table"]

BATCHES = (8, 16, 32, 64)


def growth(variants: list[str]) -> dict[str, list[int]]:
    """Returns ResNet-18's temporary bytes at each of `BATCHES`, for each variant in JAX."""
    problems = [problem(workloads()["resnet18-16"].with_batch(batch)) for batch in BATCHES]
    found = {}
    for name in variants:
        try:
            sizes = [compile_step(name, each).temp_bytes for each in problems]
        except LeftOut:
            continue
        found[name] = [size for size in sizes if size is not None]
    return found


def growth_table(found: dict[str, list[int]]) -> str:
    """Returns the results as a table, in MB."""
    last = f"per example, from {BATCHES[-2]} to {BATCHES[-1]}"
    header = ["variant", *[f"B = {batch}" for batch in BATCHES], last]
    rows = []
    for name, sizes in found.items():
        if len(sizes) < len(BATCHES):
            continue
        slope = (sizes[-1] - sizes[-2]) / (BATCHES[-1] - BATCHES[-2])
        rows.append([TITLES[name], *[f"{size / 1e6:.1f}" for size in [*sizes, slope]]])
    return f"## Temporary memory of ResNet-18-GN, MB\n\n{markdown(header, rows)}\n"
