"""Checks that all variants in JAX compute the same clipped sum, without noise.

The reference differentiates one example after another, and clips and adds in float64 NumPy. The
loss is scaled so that half of the examples are clipped.
"""

from typing import Any

import jax
import jax.flatten_util
import numpy as np

from benchmarks.jax_variants import JAX_VARIANTS, LeftOut
from benchmarks.problem import Problem, problem
from benchmarks.tables import TITLES, markdown
from benchmarks.workloads import CLIP, Workload

__all__ = ["check"]

TOLERANCE = 1e-4


def check(workload: Workload, variants: list[str]) -> tuple[str, bool]:
    """Compares the variants on a workload's batch.

    Returns:
        A table of the largest difference from the reference, relative to its largest entry, and
        whether all are within 1e-4.
    """
    built = problem(workload)
    gradients = _one_by_one(built)
    norms = np.linalg.norm(gradients, axis=1)
    scale = float(CLIP / np.median(norms))
    weights = np.minimum(1.0, CLIP / (scale * norms))
    expected = weights @ (scale * gradients)
    rows, right = [], True
    for name in variants:
        if name == "jax":
            continue
        try:
            found = _clipped_sum(name, built, scale)
        except LeftOut as why:
            rows.append([TITLES[name], f"left out: {why}"])
            continue
        error = float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
        within = error <= TOLERANCE  # False for NaN
        right = right and within
        rows.append([TITLES[name], f"{error:.1e}{'' if within else ' TOO FAR'}"])
    clipped = int(np.sum(weights < 1.0))
    heading = f"## {workload.name}: {clipped} of {workload.batch} examples clipped"
    return f"{heading}\n\n{markdown(['variant', 'relative difference'], rows)}\n", right


def _one_by_one(built: Problem) -> np.ndarray:
    gradient = jax.jit(lambda params, frozen, one: jax.grad(built.loss_of(frozen))(params, one))
    rows = range(len(built.examples[1]))
    ones = [jax.tree.map(lambda leaf, row=row: leaf[row], built.examples) for row in rows]
    return np.stack([_flat(gradient(built.params, built.frozen, one)) for one in ones])


def _clipped_sum(name: str, built: Problem, scale: float) -> np.ndarray:
    size = len(built.examples[1])
    variant = JAX_VARIANTS[name](size, 0.0)

    def mean(params: Any, frozen: Any, batch: Any) -> Any:
        loss = built.loss_of(frozen)
        scaled = lambda params, example: scale * loss(params, example)  # noqa: E731
        gradients = variant.gradients(scaled, params, batch)
        return variant.privatizer.update(gradients, variant.privatizer.init(params), params)[0]

    return size * _flat(jax.jit(mean)(built.params, built.frozen, built.examples))


def _flat(tree: Any) -> np.ndarray:
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0], np.float64)
