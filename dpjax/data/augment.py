"""Random changes to an image that keep its label; each example gets its own."""

from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp

from dpjax import _checks

__all__ = ["AUGMENTATIONS", "augmented", "flip", "shift"]


def flip(image: jax.Array, key: jax.Array) -> jax.Array:
    """Mirrors an image (H, W, C) left to right, with probability one half."""
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def shift(image: jax.Array, key: jax.Array) -> jax.Array:
    """Shifts an image by up to an eighth of its size, with its border filled by reflection.

    This is a random crop of the reflected image, as usual for CIFAR-10 (4 pixels of 32).
    """
    height, width, channels = image.shape
    margins = (max(1, height // 8), max(1, width // 8))
    padded = jnp.pad(image, [(m, m) for m in margins] + [(0, 0)], mode="reflect")
    offsets = [
        jax.random.randint(k, (), 0, 2 * m + 1)
        for k, m in zip(jax.random.split(key), margins, strict=True)
    ]
    return jax.lax.dynamic_slice(padded, [*offsets, 0], (height, width, channels))


AUGMENTATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "flip": flip,
    "shift": shift,
}


def augmented(
    loss: Callable[[chex.ArrayTree, jax.Array, jax.Array], jax.Array],
    names: Sequence[str],
    multiplicity: int,
) -> Callable[[chex.ArrayTree, jax.Array, jax.Array, jax.Array], jax.Array]:
    """Returns ``f(params, x, y, key)``: the mean loss over K augmented copies of one example.

    ``f = (1/K) sum_k loss(params, augment(x, key_k), y)``. Its gradient is clipped once, so one
    example counts once, whatever K is.

    Args:
        loss: the loss of one example.
        names: names in `AUGMENTATIONS`, applied in order.
        multiplicity: K.

    Reference: De et al., Unlocking high-accuracy differentially private image classification
    through scale, 2022 (augmentation multiplicity).
    """
    for name in names:
        if name not in AUGMENTATIONS:
            raise ValueError(f"train.augment = {name!r}: {_checks.nearest(name, AUGMENTATIONS)}")

    def one(params: chex.ArrayTree, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        for i, name in enumerate(names):
            x = AUGMENTATIONS[name](x, jax.random.fold_in(key, i))
        return loss(params, x, y)

    def mean(params: chex.ArrayTree, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, multiplicity)
        return jnp.mean(jax.vmap(one, in_axes=(None, None, None, 0))(params, x, y, keys))

    return mean
