"""What is audited: a method with its arguments, and many draws of what it releases.

An adaptive threshold also releases its noisy statistic, so the audit watches that too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax._toml import Table
from dpjax.audit.pairs import DIMENSION, ROWS, Pair
from dpjax.gradients import per_example_grads
from dpjax.mechanism import Mechanism, Release
from dpjax.methods.table import build_method, constructors
from dpjax.thresholds import Threshold, ThresholdContext, ThresholdState

__all__ = [
    "BATCH_SIZE",
    "Auditable",
    "Draw",
    "Subject",
    "releases_of",
    "subjects",
    "watched",
    "watched_statistic",
]


@dataclass(frozen=True)
class Subject:
    """How a method is audited.

    Attributes:
        arguments: its constructor's arguments, except the noise and the length of the run.
        rate: the probability with which each watched step takes the canary.
        steps: how many steps are watched.
        sampling: how its training samples.
        batch_size: the batch size of its training, unless every step takes all examples.
        canaries: the number of canaries in its training; about half of them are trained on.
        printed: whether its claim is a paper's formula, because it has no guarantee.

    Example:
        >>> Subject({"threshold": 0.5}).method("dp_sgd", noise_multiplier=1.0).threshold
        0.5
    """

    arguments: Table = field(default_factory=dict)
    rate: float = 1.0
    steps: int = 1
    sampling: str = "poisson"
    batch_size: int = 1000
    canaries: int = 2000
    printed: bool = False

    def method(self, name: str, noise_multiplier: float) -> Release:
        """Returns the method for the audit of a step.

        Args:
            name: a name in `dpjax.methods`.
            noise_multiplier: sigma, or sigma_0 of a decaying one.
        """
        facts = {
            "steps": 100,
            "steps_per_epoch": max(1.0, self.steps),
            "epochs": 10,
            "dataset_size": ROWS,
        }
        given = {"name": name, "noise_multiplier": noise_multiplier, **self.arguments}
        return build_method(given, facts)


_SPECIAL = {
    "global_": Subject({"z": 3.0}),
    "lin_transfer": Subject({"thresholds": [1.0, 0.8]}),
    "psasc_momentum_full_batch": Subject(sampling="full"),
    # The printed formula counts epochs of sampled batches, so one epoch of four steps is watched.
    "auto_dp_sgd": Subject(
        {"decay": "linear"}, rate=0.25, steps=4, batch_size=20, canaries=200, printed=True
    ),
}


def subjects() -> dict[str, Subject]:
    """Returns how each method is audited, by name; registered methods are included.

    Example:
        >>> subjects()["dp_sgd"].rate
        1.0
    """
    return {name: _SPECIAL.get(name, Subject()) for name in constructors()}


class _WatchedState(NamedTuple):
    inner: ThresholdState
    noisy: jax.Array

    @property
    def threshold(self) -> jax.Array:
        """C_t of the threshold that is watched."""
        return self.inner.threshold


@dataclass(frozen=True)
class _Watched(Threshold[_WatchedState]):
    """The threshold `inner`, which also keeps the last noisy sum in its state."""

    inner: Threshold[Any]

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        return self.inner.sensitivity

    def sigma_statistic(self, sigma: float, expected_batch_size: float | None) -> float | None:
        return self.inner.sigma_statistic(sigma, expected_batch_size)

    def init(self) -> _WatchedState:
        state = self.inner.init()
        length = jax.eval_shape(self.inner.statistic, jnp.ones(1), state).shape[1]
        return _WatchedState(state, jnp.zeros(length, jnp.float32))

    def statistic(self, norms: jax.Array, state: _WatchedState) -> jax.Array:
        return self.inner.statistic(norms, state.inner)

    def update(
        self, state: _WatchedState, noisy_sum: jax.Array, context: ThresholdContext
    ) -> _WatchedState:
        return _WatchedState(self.inner.update(state.inner, noisy_sum, context), noisy_sum)


def watched(subject: Release) -> Release:
    """Returns the subject with its noisy statistic in the state; its release is unchanged.

    Args:
        subject: what is audited.

    Returns:
        The watched subject; the subject itself if it has no statistic.

    Example:
        >>> import dpjax
        >>> method = dpjax.methods.andrew(noise_multiplier=1.0)
        >>> type(watched(method).threshold).__name__, watched(dpjax.methods.dp_sgd(1.0)).threshold
        ('_Watched', 1.0)
    """
    if not isinstance(subject, Mechanism) or not isinstance(subject.threshold, Threshold):
        return subject
    return subject.replace(threshold=_Watched(subject.threshold))


def watched_statistic(opt_state: optax.OptState) -> jax.Array:
    """Returns the noisy statistic of the last step, (m,); (0,) if there is none."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, _WatchedState))
    found = [node.noisy for node in nodes if isinstance(node, _WatchedState)]
    return found[0] if found else jnp.zeros(0)


BATCH_SIZE = 32
"""The expected batch size; every release is divided by it, however many rows there are."""

_AT_ONCE = 4_000  # draws per call; always the same, so that it compiles once


class Auditable(Protocol):
    """What can be audited: a `dpjax.Mechanism`, or anything with the same interface."""

    def transformation(
        self, sampling: float, key: chex.PRNGKey
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the optax transformation.

        Args:
            sampling: the expected batch size.
            key: the key of the noise.
        """


class Draw(Protocol):
    """Draws independent releases, (count, T D) in float64, of a pair or of several in turn."""

    def __call__(
        self, pair: Pair | Sequence[Pair], present: bool, key: jax.Array, count: int
    ) -> np.ndarray:
        """Returns releases; with several pairs, which must have the same others, in turn."""


def releases_of(subject: Auditable, rate: float = 1.0) -> Draw:
    """Returns ``draw(pair, present, key, count)``: independent releases, (count, T D) in float64.

    A release is everything that T steps make public: the noisy gradients, and the noisy statistics
    of a `watched` threshold. The loss is linear, ``<params, example>``, so an example is its own
    gradient; from the loss to the release, the code is the code that trains.

    Args:
        subject: what is audited.
        rate: the probability with which each step takes the canary, independently. The other
            examples always take part, which the accounting of Poisson sampling covers.
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

    # Pairs are arguments, so that all pairs with the same number of steps share one compilation.
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
    """Splits the last axis into two leaves, so that there are layers to clip by."""
    half = DIMENSION // 2
    return {"first": flat[..., :half], "second": flat[..., half:]}


def _linear(params: chex.ArrayTree, example: chex.ArrayTree) -> jax.Array:
    products = jax.tree.map(jnp.vdot, params, example)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))
