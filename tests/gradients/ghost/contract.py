"""What an engine must give, from the gradients of each example alone in float64.

The oracle is ``jax.value_and_grad(loss)``, one example at a time: under `jax.vmap` a NaN in one
example may reach the others. Norms, masks and sums are NumPy's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from tests.models.helpers import fast_jit

ROWS = 5
# Largest error next to what is summed, and next to the whole gradient's length.
TOLERANCE = {
    np.dtype("float64"): (1e-10, 1e-14),
    np.dtype("float32"): (3e-5, 3e-6),
    np.dtype("float16"): (4e-3, 1e-3),
    np.dtype(jnp.bfloat16): (3e-2, 1e-2),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A loss of one example with parameters and ROWS rows, in float64.

    Args:
        loss: of one example.
        params: pytree of float64 arrays.
        batch: pytree of arrays with a leading axis.
        rounded: the loss rounds to this dtype itself; tolerances are that dtype's.
    """

    loss: Callable[..., Any]
    params: Any
    batch: Any
    rounded: Any = None


def cast(tree, dtype):
    """Returns the tree with its floats as `dtype`; integers and booleans as they are."""

    def leaf(x):
        x = np.asarray(x)
        return jnp.asarray(x, dtype if np.issubdtype(x.dtype, np.floating) else None)

    return jax.tree.map(leaf, tree)


@cache
def _oracle(case):
    return fast_jit(jax.value_and_grad(case.loss))


def oracle(case, batch=None):
    """Returns (losses, list of leaves (rows, ...)) in float64."""
    batch = case.batch if batch is None else batch
    with jax.enable_x64(True):
        params, batch = cast(case.params, "float64"), cast(batch, "float64")
        rows = [jax.tree.map(lambda x, i=i: x[i], batch) for i in range(ROWS)]
        found = [jax.tree.leaves(_oracle(case)(params, row)) for row in rows]
    losses, *leaves = (np.stack(column) for column in zip(*found, strict=True))
    return losses, leaves


@dataclass(frozen=True)
class Expected:
    """Norms and sums of an oracle's gradients, with padding and bad rows counted as zero."""

    leaves: list[np.ndarray]
    real: np.ndarray

    @property
    def finite(self):
        flat = [g.reshape(len(g), -1) for g in self.leaves]
        return np.all([np.isfinite(g).all(axis=1) for g in flat], axis=0)

    @property
    def group_norms(self):
        """(rows, leaves), +inf in a row that is not finite, 0 in a padded one."""
        with np.errstate(invalid="ignore"):
            norms = [np.linalg.norm(g.reshape(len(g), -1), axis=1) for g in self.leaves]
        norms = np.where(self.finite[:, None], np.stack(norms, 1), np.inf)
        return np.where(self.real[:, None], norms, 0)

    @property
    def norms(self):
        return np.linalg.norm(self.group_norms, axis=1)

    @property
    def used(self):
        return self.real & self.finite

    def weighted(self, weights):
        """Returns the leaves' ``(sum_i w_i g_i, sum_i |w_i g_i|)``; weights (rows, leaves)."""
        sums = []
        for g, w in zip(self.leaves, weights.T, strict=True):
            kept = g[self.used] * w[self.used].reshape(-1, *(1,) * (g.ndim - 1))
            sums.append((kept.sum(axis=0), np.abs(kept).sum(axis=0)))
        return sums


def assert_norms(found, expected, dtype):
    """Compares (rows, leaves) norms; what rounding leaves of a zero goes by the row's length."""
    relative, floor = TOLERANCE[np.dtype(dtype)]
    found, norms = np.asarray(found, np.float64), expected.group_norms
    np.testing.assert_array_equal(np.isinf(found), np.isinf(norms))
    kept = expected.used
    allowed = (relative * norms + floor * expected.norms[:, None])[kept]
    worst = np.max(np.abs(found[kept] - norms[kept]) - allowed, initial=-1)
    assert worst <= 0, f"norms by leaf:\n{found}\nexpected\n{norms}"
    assert not np.any(found[~expected.real])


def assert_flat_norms(found, expected, dtype):
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected.norms))
    kept = np.isfinite(expected.norms)
    relative = TOLERANCE[np.dtype(dtype)][0]
    np.testing.assert_allclose(np.asarray(found)[kept], expected.norms[kept], rtol=relative)


def assert_sums(found, expected, weights, dtype):
    """Compares a pytree of sums, each with the length of what was added up."""
    relative, floor = TOLERANCE[np.dtype(dtype)]
    weights = np.broadcast_to(np.asarray(weights, np.float64), expected.group_norms.shape)
    whole = np.sum((np.abs(weights).max(axis=1) * expected.norms)[expected.used])
    leaves = jax.tree_util.tree_leaves_with_path(found)
    for (path, total), (exact, scale) in zip(leaves, expected.weighted(weights), strict=True):
        assert total.shape == exact.shape, path
        allowed = relative * np.max(scale, initial=0) + floor * whole
        error = np.abs(np.asarray(total, np.float64) - exact)
        assert np.max(error, initial=0) <= allowed, f"{path}:\n{total}\nexpected\n{exact}"


def weights_for(case, seed=0):
    """Random weights (ROWS,) and by leaf (ROWS, leaves), of both signs."""
    rng = np.random.default_rng(seed)
    leaves = len(jax.tree.leaves(case.params))
    return rng.standard_normal(ROWS), rng.standard_normal((ROWS, leaves))


@cache
def one_pass(case, engine):
    """Returns the jitted sum by leaf with the norms of every row as its statistic.

    One pass and few equations, which is what compiles fast: each row writes its norms into a row
    of its own in the statistic.
    """
    grads_of = dpjax.per_example_grads(case.loss, engine=engine)

    def run(params, batch, mask, weights):
        def by_row(norms):
            own = jnp.eye(ROWS, dtype=bool)[:, :, None]
            return weights, jnp.where(own, norms[:, None, :], 0)

        return grads_of(params, batch, mask=mask).aggregate(by_row, "per_leaf").rounded

    return fast_jit(run)


def check_one_pass(case, engine, dtype="float64", batch=None, mask=(1,) * ROWS):
    """Holds norms and sum by leaf against the oracle; returns what was expected."""
    batch = case.batch if batch is None else batch
    mask = np.asarray(mask, bool)
    expected = Expected(oracle(case, batch)[1], mask)
    weights = weights_for(case)[1]
    with jax.enable_x64(dtype == "float64"):
        args = cast((case.params, batch, mask, weights), dtype)
        total, norms = jax.tree.map(np.asarray, one_pass(case, engine)(*args))
    kind = case.rounded or dtype
    assert_norms(norms, expected, kind)
    assert_sums(total, expected, weights, kind)
    assert jax.tree.structure(total) == jax.tree.structure(case.params)
    return expected


@cache
def everything(case, engine, chunk=None):
    """Returns the jitted pass that gives all that `PerExampleGrads` has."""
    grads_of = dpjax.per_example_grads(case.loss, engine=engine, chunk=chunk)

    def run(params, batch, mask, weights, by_leaf):
        grads = grads_of(params, batch, mask=mask)
        sums = grads.weighted_sum(weights), grads.weighted_sum(by_leaf, "per_leaf")
        return grads.losses, grads.norms, grads.group_norms("per_leaf"), *sums

    return fast_jit(run)


def check_everything(case, engine, dtype, chunk=None, mask=(1,) * ROWS):
    """Holds losses, norms and sums, with groups and without, against the oracle."""
    losses, leaves = oracle(case)
    mask = np.asarray(mask, bool)
    expected = Expected(leaves, mask)
    flat, by_leaf = weights_for(case)
    with jax.enable_x64(dtype == "float64"):
        args = cast((case.params, case.batch, mask, flat, by_leaf), dtype)
        found = jax.tree.map(np.asarray, everything(case, engine, chunk)(*args))
    kind = case.rounded or dtype
    relative = TOLERANCE[np.dtype(kind)][0]
    losses = np.where(mask, losses, 0)
    limit = relative * np.max(np.abs(losses))
    np.testing.assert_allclose(found[0], losses, rtol=relative, atol=limit)
    assert found[0].dtype == found[1].dtype == dtype
    assert_flat_norms(found[1], expected, kind)
    assert_norms(found[2], expected, kind)
    assert_sums(found[3], expected, flat[:, None], kind)
    assert_sums(found[4], expected, by_leaf, kind)


def with_bad_rows(case, bad):
    """Returns the rows with one number of each float array replaced, or None without floats.

    Args:
        case: whose rows are taken.
        bad: the number for each row that gets one, by row.
    """
    arrays = [np.array(x) for x in jax.tree.leaves(case.batch)]
    floats = [x for x in arrays if np.issubdtype(x.dtype, np.floating)]
    for x in floats:
        for row, value in bad.items():
            x[(row, *(0,) * (x.ndim - 1))] = value
    return jax.tree.unflatten(jax.tree.structure(case.batch), arrays) if floats else None
