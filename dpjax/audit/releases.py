"""Many draws of what a method releases on a batch with the canary, or without it."""

from collections.abc import Sequence
from typing import Any, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.audit.pairs import DIMENSION, Pair
from dpjax.audit.watched import watched_statistic
from dpjax.gradients import per_example_grads

__all__ = ["BATCH_SIZE", "Auditable", "Draw", "releases_of"]

BATCH_SIZE = 32
"""The expected batch size; every release is divided by it, however many rows there are."""

_AT_ONCE = 4_000  # always the same, so that it compiles once


class Auditable(Protocol):
    """What can be audited: a `dpjax.Mechanism`, or anything that is used like one."""

    def transformation(
        self, sampling: float, key: chex.PRNGKey
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the optax transformation."""


class Draw(Protocol):
    """Independent releases, (count, T D) in float64, of a pair or of one of some pairs."""

    def __call__(
        self, pair: Pair | Sequence[Pair], present: bool, key: jax.Array, count: int
    ) -> np.ndarray:
        """Returns releases; of several pairs with the same others, draws take turns."""


def releases_of(subject: Auditable, rate: float = 1.0) -> Draw:
    """Returns ``draw(pair, present, key, count)``: independent releases, (count, T D) in float64.

    A release is all that T steps make public: the noisy gradients, and the noisy statistics of a
    threshold that `dpjax.audit.watched` watches. The loss is linear, ``<params, example>``, so that
    an example is its own gradient; everything from the loss to the release is the code that trains.

    Args:
        subject: what is audited.
        rate: the probability with which each step takes the canary, independently; the others take
            part always, which the accounting of Poisson sampling covers.
    """

    def one(key: jax.Array, batches: jax.Array, others: jax.Array, present: jax.Array) -> jax.Array:
        noise, sampling = jax.random.split(key)
        tx = subject.transformation(BATCH_SIZE, noise)
        params = _parts(jnp.zeros(DIMENSION))
        state = tx.init(params)
        taken = jax.random.bernoulli(sampling, rate, batches.shape[:1]) & present
        seen = []
        for rows, now in zip(batches, taken, strict=True):
            mask = others.at[-1].set(now.astype(others.dtype))
            grads = per_example_grads(_linear, engine="vmap")(params, _parts(rows), mask=mask)
            updates, state = tx.update(grads, state, params)
            seen += [*jax.tree.leaves(updates), watched_statistic(state)]
        return jnp.concatenate([jnp.ravel(part) for part in seen])

    # Pairs are arguments, so that all of as many steps share one compilation.
    many = jax.jit(jax.vmap(one, in_axes=(0, 0, None, None)))

    def draw(pair: Pair | Sequence[Pair], present: bool, key: jax.Array, count: int) -> np.ndarray:
        pairs = [pair] if isinstance(pair, Pair) else pair
        batches = np.stack([each.batches() for each in pairs])
        given = (jnp.asarray(pairs[0].mask()), jnp.asarray(present))
        parts = []
        for start in range(0, count, _AT_ONCE):
            keys = jax.random.split(jax.random.fold_in(key, start), _AT_ONCE)
            turn = np.arange(start, start + _AT_ONCE) % len(pairs)
            parts.append(np.asarray(many(keys, batches[turn], *given), np.float64))
        return np.concatenate(parts)[:count]

    return draw


def _parts(flat: jax.Array) -> dict[str, jax.Array]:
    """Returns the last axis in two leaves, so that there are layers to clip by."""
    half = DIMENSION // 2
    return {"first": flat[..., :half], "second": flat[..., half:]}


def _linear(params: Any, example: Any) -> jax.Array:
    products = jax.tree.map(jnp.vdot, params, example)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))
