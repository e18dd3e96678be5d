"""Releases that are broken on purpose, each in a way that a library has shipped or could ship."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax import methods
from dpjax.audit.subjects import BATCH_SIZE

C, SIGMA = 1.0, 1.0
SIGMA_S = 1.1  # the statistic's noise, little enough for its part of the release to matter
SIGMA_T = (SIGMA**-2 - SIGMA_S**-2) ** -0.5
BINS, RANGE = 4, 4.0


class Rows(NamedTuple):
    """A batch as a sum wants it: gradients (R, 2, d/2) by layer, and which rows are real."""

    layers: jax.Array
    real: jax.Array

    @property
    def flat(self):
        return self.layers.reshape(len(self.real), -1)

    @property
    def norms(self):
        return jnp.linalg.norm(self.flat, axis=1)


class State(NamedTuple):
    step: jax.Array
    key: jax.Array


Release = Callable[[jax.Array, Rows, float], jax.Array]


@dataclass(frozen=True)
class HandMade:
    """A transformation written out: ``release(key, rows, B)`` is the update, flat.

    Attributes:
        release: the update.
        key_of: the key of a step, from the root and the step.
    """

    release: Release
    key_of: Callable[[jax.Array, jax.Array], jax.Array] = field(default=jax.random.fold_in)

    def loss(self, loss_fn: Any, opt_state: Any) -> Any:
        del opt_state
        return loss_fn

    def transformation(self, expected_batch_size: float, key: Any) -> Any:
        def init(params):
            del params
            return State(jnp.zeros((), jnp.int32), key)

        def update(grads, state, params=None, **_):
            del params
            rows = Rows(jnp.stack(jax.tree.leaves(grads.vectors), axis=1), grads.real)
            found = self.release(self.key_of(state.key, state.step), rows, expected_batch_size)
            return found, State(state.step + 1, state.key)

        return optax.GradientTransformationExtraArgs(init, update)


def clipped(rows: Rows, bound: float = C) -> jax.Array:
    """Returns the clipped gradients (R, d); zero for padding and for what is not finite."""
    finite = jnp.isfinite(rows.flat).all(1) & jnp.isfinite(rows.norms)
    weights = jnp.minimum(1.0, bound / jnp.maximum(rows.norms, 1e-20))
    keep = (rows.real & finite)[:, None]
    return jnp.where(keep, rows.flat * weights[:, None], 0.0)


def normal(key: jax.Array, like: jax.Array) -> jax.Array:
    return jax.random.normal(key, like.shape)


def sound(key, rows, batch_size):
    total = clipped(rows).sum(0)
    return (total + SIGMA * C * normal(key, total)) / batch_size


def noise_divided_twice(key, rows, batch_size):
    total = clipped(rows).sum(0)
    return (total + SIGMA * C * normal(key, total) / batch_size) / batch_size


def layer_bound_forgotten(key, rows, batch_size):
    """Each of two layers is clipped to C, and the noise is for C in all."""
    norms = jnp.linalg.norm(rows.layers, axis=2, keepdims=True)
    layers = rows.layers * jnp.minimum(1.0, C / jnp.maximum(norms, 1e-20))
    keep = (rows.real & jnp.isfinite(rows.norms))[:, None]
    total = jnp.where(keep, layers.reshape(len(rows.real), -1), 0.0).sum(0)
    return (total + SIGMA * C * normal(key, total)) / batch_size


def realised_batch_size(key, rows, batch_size):
    del batch_size
    total = clipped(rows).sum(0)
    return (total + SIGMA * C * normal(key, total)) / jnp.maximum(rows.real.sum(), 1)


def not_a_number_let_through(key, rows, batch_size):
    """Masks by multiplying, and clips a norm that is not a number."""
    weights = rows.real * jnp.minimum(1.0, C / jnp.maximum(rows.norms, 1e-20))
    total = (rows.flat * weights[:, None]).sum(0)
    return (total + SIGMA * C * normal(key, total)) / batch_size


def noise_per_chunk(key, rows, batch_size):
    """Four chunks, each with a quarter of the noise's deviation: half of it in the sum."""
    total = clipped(rows).sum(0)
    chunks = jax.random.normal(key, (4, *total.shape)) * SIGMA * C / 4
    return (total + chunks.sum(0)) / batch_size


def histogram(rows: Rows, counted: jax.Array) -> jax.Array:
    """Returns how many rows have their norm in each bin."""
    norms = jnp.where(jnp.isfinite(rows.norms), rows.norms, RANGE)
    bins = jnp.clip((norms / RANGE * BINS).astype(int), 0, BINS - 1)
    return jnp.where(counted[:, None], jax.nn.one_hot(bins, BINS), 0.0).sum(0)


def with_histogram(key, rows, batch_size, sigma_gradient=SIGMA_T, counted=None):
    """The joint release: a gradient and a histogram, whose noise shares one sigma."""
    first, second = jax.random.split(key)
    total = clipped(rows).sum(0)
    counts = histogram(rows, rows.real if counted is None else counted)
    noisy = (total + sigma_gradient * C * normal(first, total)) / batch_size
    return jnp.concatenate([noisy, counts + SIGMA_S * normal(second, counts)])


def histogram_without_its_share(key, rows, batch_size):
    return with_histogram(key, rows, batch_size, sigma_gradient=SIGMA)


def padding_counted(key, rows, batch_size):
    """Padding is of norm zero, and counted: a row that comes leaves one bin and enters another."""
    padded = Rows(jnp.where(rows.real[:, None, None], rows.layers, 0.0), rows.real)
    return with_histogram(key, padded, batch_size, counted=jnp.ones_like(rows.real))


MEAN, SCALE = 1.0, 0.01  # AdaCliP's moments after a while, far from the coming gradients


def adaclip(key, rows, batch_size):
    standard = Rows((rows.layers - MEAN) / SCALE, rows.real)
    total = clipped(standard).sum(0)
    return SCALE * (total + SIGMA * normal(key, total)) / batch_size + MEAN


def adaclip_masks_the_gradient(key, rows, batch_size):
    """Zero in place of g adds -m / b in place of nothing."""
    finite = (rows.real & jnp.isfinite(rows.norms))[:, None, None]
    zeroed = jnp.where(finite, rows.layers, 0.0)
    standard = Rows((zeroed - MEAN) / SCALE, jnp.ones_like(rows.real))
    total = clipped(standard).sum(0)
    return SCALE * (total + SIGMA * normal(key, total)) / batch_size + MEAN


def noise_missing_now_and_then(key, rows, batch_size):
    """Once in 500 steps the sum is released as it is: delta 2e-3, whatever epsilon."""
    first, second = jax.random.split(key)
    total = clipped(rows).sum(0)
    there = ~jax.random.bernoulli(second, 1 / 500)
    return (total + SIGMA * C * normal(first, total) * there) / batch_size


def noise_shared_between_layers(key, rows, batch_size):
    """The second layer's noise has a correlation of 0.6 with the first's."""
    total = clipped(rows).sum(0)
    first, second = jnp.split(normal(key, total), 2)
    noise = jnp.concatenate([first, 0.6 * first + 0.8 * second])
    return (total + SIGMA * C * noise) / batch_size


def bound_a_tenth_short(key, rows, batch_size):
    total = clipped(rows, 1.1 * C).sum(0)
    return (total + SIGMA * C * normal(key, total)) / batch_size


def noise_cut(key, rows, batch_size):
    """What lies beyond 4 sigma is put there."""
    total = clipped(rows).sum(0)
    return (total + SIGMA * C * jnp.clip(normal(key, total), -4.0, 4.0)) / batch_size


def noise_cut_by_drawing_again(key, rows, batch_size):
    """What lies beyond 4 sigma is drawn again."""
    total = clipped(rows).sum(0)
    noise = jax.random.truncated_normal(key, -4.0, 4.0, total.shape)
    return (total + SIGMA * C * noise) / batch_size


def on_a_grid(release):
    """The same release, rounded to a public grid of a sixteenth of the noise."""

    def rounded(key, rows, batch_size):
        unit = SIGMA * C / 16 / batch_size
        return jnp.round(release(key, rows, batch_size) / unit) * unit

    return rounded


@dataclass(frozen=True)
class Altered:
    """DP-SGD of the library, with what it releases altered from outside.

    Attributes:
        alter: takes a key, the release without its noise, and the noise, both flat and as they are
            released; returns what is released in their place.
    """

    alter: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

    def loss(self, loss_fn: Any, opt_state: Any) -> Any:
        del opt_state
        return loss_fn

    def transformation(self, expected_batch_size: float, key: Any) -> Any:
        noisy, clean = (
            methods.dp_sgd(sigma, threshold=C).transformation(expected_batch_size, key)
            for sigma in (SIGMA, 0.0)
        )

        def init(params):
            return noisy.init(params), clean.init(params), State(jnp.zeros((), jnp.int32), key)

        def update(grads, states, params=None, **_):
            found, first = noisy.update(grads, states[0], params)
            bare, second = clean.update(grads, states[1], params)
            step, root = states[2]
            (flat, unravel), (alone, _) = ravel_pytree(found), ravel_pytree(bare)
            own = jax.random.fold_in(jax.random.fold_in(root, step), 1)
            altered = self.alter(own, alone, flat - alone)
            return unravel(altered), (first, second, State(step + 1, root))

        return optax.GradientTransformationExtraArgs(init, update)


def _shared(key, clean, noise):
    first, second = jnp.split(noise, 2)
    return clean + jnp.concatenate([first, 0.6 * first + 0.8 * second])


def _cut(key, clean, noise):
    most = 4 * SIGMA * C / BATCH_SIZE
    return clean + jnp.clip(noise, -most, most)


ALTERED = {
    "noise missing once in 500 steps": Altered(
        lambda key, clean, noise: clean + noise * ~jax.random.bernoulli(key, 1 / 500)
    ),
    "noise correlated between layers": Altered(_shared),
    "a bound a tenth short": Altered(lambda key, clean, noise: 1.1 * clean + noise),
    "noise cut at 4 sigma": Altered(_cut),
}
UNALTERED = Altered(lambda key, clean, noise: clean + noise)

SOUND = {
    "sound": HandMade(sound),
    "with_histogram": HandMade(with_histogram),
    "adaclip": HandMade(adaclip),
}
BROKEN = {
    "noise divided by the batch size twice": HandMade(noise_divided_twice),
    "per-layer bound forgotten": HandMade(layer_bound_forgotten),
    "realised batch size as denominator": HandMade(realised_batch_size),
    "a NaN example let through": HandMade(not_a_number_let_through),
    "histogram without its share of sigma": HandMade(histogram_without_its_share),
    "noise per chunk, scaled wrongly": HandMade(noise_per_chunk),
    "padding counted in the statistic": HandMade(padding_counted),
    "AdaCliP masks g in place of u": HandMade(adaclip_masks_the_gradient),
}
RARE = {
    "noise missing once in 500 steps": noise_missing_now_and_then,
    "noise correlated between layers": noise_shared_between_layers,
    "a bound a tenth short": bound_a_tenth_short,
    "noise cut at 4 sigma": noise_cut,
    "noise cut at 4 sigma by drawing again": noise_cut_by_drawing_again,
}
BROKEN |= {name: HandMade(release) for name, release in RARE.items()}
BROKEN |= {f"{name}, in the library": subject for name, subject in ALTERED.items()}
BROKEN |= {f"{name}, on a grid": HandMade(on_a_grid(release)) for name, release in RARE.items()}
SOUND |= {"on a grid": HandMade(on_a_grid(sound)), "in the library": UNALTERED}
SAME_KEY = HandMade(sound, key_of=lambda key, step: key)
