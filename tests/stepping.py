"""Steps of a transformation with known draws, on flat rows, as the oracles of methods take them.

The library's releases are replaced by the sum plus draws handed to the jitted step, times the
release's standard deviation: one row for the gradient, then one for the statistic. Nothing is put
on a grid.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import noise
from dpjax.noise import grid
from dpjax.privatize import PrivatizeState

ROWS, D = 64, 20
SHAPES = ((3,), (4, 3), (5,))  # body/bias, body/kernel, head: the order of jax.tree.leaves
LEAVES = (np.arange(3), np.arange(3, 15), np.arange(15, 20))  # where each lies in a flat row
FLOAT32 = 1e-5


def tree_of(flat: Any) -> Any:
    """Rows (..., d) as a pytree shaped like the parameters, in float32."""
    flat = np.asarray(flat, np.float32)
    bias, kernel, head = (
        flat[..., at].reshape(flat.shape[:-1] + shape)
        for at, shape in zip(LEAVES, SHAPES, strict=True)
    )
    return {"head": head, "body": {"kernel": kernel, "bias": bias}}


def flat_of(tree: Any) -> np.ndarray:
    """The leaves of a pytree end to end, in float64."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def batch(seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (k, d) and their mask; padding holds junk, even seeds a NaN row and one of 1e20."""
    rng = np.random.default_rng(seed)
    g = scale * rng.lognormal(-0.5, 1.0, (ROWS, 1)) * rng.standard_normal((ROWS, D)) / 2
    mask = np.ones(ROWS)
    mask[[0, 20, 60, 61, 62, 63]] = 0
    g[20], g[61, 2], g[62] = 1e20, np.nan, np.inf
    if seed % 2 == 0:
        g[3, 7], g[9, 1] = np.nan, -1e20
    return g.astype(np.float32).astype(np.float64), mask


def close(got: Any, want: Any, tolerance: float = FLOAT32) -> None:
    """Relative to the largest entry: float32 sums do no better where terms cancel."""
    want = np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, tolerance, tolerance * np.abs(want).max())


def at_step(state: Any, step: int) -> Any:
    """The state with its count of released steps moved to `step`."""
    return jax.tree.map(
        lambda s: s._replace(step=jnp.int32(step)) if isinstance(s, PrivatizeState) else s,
        state,
        is_leaf=lambda s: isinstance(s, PrivatizeState),
    )


def quadratic(params: Any, example: Any) -> jax.Array:
    """a |w - x|^2 / 2, whose gradient is a (w - x)."""
    gaps = jax.tree.map(lambda w, x: jnp.sum((w - x) ** 2), params, example["x"])
    return 0.5 * example["a"] * sum(jax.tree.leaves(gaps))


class Stepper:
    """Runs ``update(rows, state, params, mask)``, jitted, with draws that are known afterwards."""

    def __init__(
        self, patch: pytest.MonkeyPatch, init: Callable, update: Callable, start: int = 0
    ) -> None:
        queue: list[jax.Array] = []

        def supplied(key: jax.Array, like: Any) -> Any:
            leaves, treedef = jax.tree.flatten(like)
            ends = np.cumsum([leaf.size for leaf in leaves])
            parts = jnp.split(queue.pop(0)[: ends[-1]], ends[:-1])
            shaped = [z.reshape(x.shape) for z, x in zip(parts, leaves, strict=True)]
            return jax.tree.unflatten(treedef, shaped)

        def released(key: jax.Array, high: Any, low: Any, std: Any) -> Any:
            normals = supplied(key, high)
            return jax.tree.map(lambda a, b, z: a + (b + std * z), high, low, normals)

        patch.setattr(noise, "standard_normal", supplied)
        patch.setattr(grid, "release", released)

        def with_draws(draws: jax.Array, *args: Any) -> Any:
            queue[:] = list(draws)
            return update(*args)

        self.params = tree_of(np.linspace(-0.3, 0.4, D))
        self.state = at_step(init(self.params), start)
        self._update = jax.jit(with_draws)
        self._rng = np.random.default_rng(99)

    def step(self, rows: Any, mask: np.ndarray) -> np.ndarray:
        """Takes one step and returns the update, flat."""
        self._draws = self._rng.standard_normal((2, D)).astype(np.float32)
        update, self.state = self._update(self._draws, rows, self.state, self.params, mask)
        return flat_of(update)

    @property
    def z_grad(self) -> np.ndarray:
        """The draws on the gradient in the last step."""
        return self._draws[0].astype(np.float64)

    def z_stat(self, size: int) -> np.ndarray:
        """The draws on the statistic in the last step."""
        return self._draws[-1, :size].astype(np.float64)


def stepper(patch: pytest.MonkeyPatch, tx: Any, start: int = 0) -> Stepper:
    """A Stepper of plain per-example gradients."""
    return Stepper(
        patch, tx.init, lambda rows, s, params, mask: tx.update(rows, s, params, mask=mask), start
    )
