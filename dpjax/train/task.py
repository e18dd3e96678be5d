"""What is learned: the loss of one example, and how well it is learned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import _checks
from dpjax.data import Dataset, Pixels, RandomAccess, Split
from dpjax.models import Network, Parameters
from dpjax.train.config import TrainConfig

__all__ = [
    "AUGMENTATIONS",
    "ExampleRows",
    "Examples",
    "Scores",
    "Task",
    "augmented",
    "examples_of",
]

_EVALUATED_AT_ONCE = 500


class Examples(NamedTuple):
    """Examples as the loop takes them, with a leading axis.

    Attributes:
        x: inputs as they are stored: pixels as bytes, tokens, or features.
        y: class labels.
        row: the example's own number, which its augmentation's key is folded with, so that it does
            not matter on which device or in which part of a batch the example comes.
    """

    x: Any
    y: Any
    row: Any


class Scores(NamedTuple):
    """How well held-out examples are classified."""

    accuracy: jax.Array
    loss: jax.Array


class ExampleRows:
    """Examples that are read when they are asked for, numbered.

    Args:
        rows: where they come from.
    """

    def __init__(self, rows: RandomAccess) -> None:
        """Keeps the source."""
        self._rows = rows

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self._rows)

    def __getitems__(self, rows: np.ndarray) -> Examples:
        """Returns some of them."""
        return Examples(*self._rows.__getitems__(rows), np.asarray(rows, np.int32))


@overload
def examples_of(split: Split) -> Examples: ...
@overload
def examples_of(split: RandomAccess) -> ExampleRows: ...
def examples_of(split: Split | RandomAccess) -> Examples | ExampleRows:
    """Returns the examples of a split, numbered."""
    if not isinstance(split, Split):
        return ExampleRows(split)
    return Examples(split.x, split.y, np.arange(len(split.y), dtype=np.int32))


@dataclass(frozen=True)
class Task:
    """A network and the data's own scale.

    Args:
        network: the network.
        pixels: how stored pixels become numbers; None for what is no image.
        config: says how examples are augmented.
    """

    network: Network
    pixels: Pixels | None
    config: TrainConfig

    @classmethod
    def of(cls, network: Network, dataset: Dataset, scale: str, config: TrainConfig) -> "Task":
        """Returns the task of a data set; `scale` is that of `DataConfig`."""
        pixels = dataset.pixels
        if pixels is None and config.augment:
            raise ValueError(
                f"train.augment = {list(config.augment)}: expected none, since {dataset.name} "
                "holds no images"
            )
        if pixels is not None and scale == "unit":
            channels = len(pixels.mean)
            pixels = Pixels(pixels.full, (0.0,) * channels, (1.0,) * channels)
        return cls(network, pixels, config)

    def loss(self, frozen: Any, key: jax.Array) -> Callable[[Any, Examples], jax.Array]:
        """Returns the loss of ONE example, ``loss(params, example)``, for this step.

        Args:
            frozen: the parameters that are not trained.
            key: the step's key for augmentation.
        """

        def plain(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            logits = self._logits(Parameters(params, frozen).merged(), x)
            return _loss(logits, y)

        if not self.config.augment:
            return lambda params, example: plain(params, self._scaled(example.x), example.y)
        mean = augmented(plain, self.config.augment, self.config.multiplicity)

        def loss(params: Any, example: Examples) -> jax.Array:
            own = jax.random.fold_in(key, example.row)
            return mean(params, self._scaled(example.x), example.y, own)

        return loss

    def outcomes(self, params: Any, examples: Examples) -> tuple[jax.Array, jax.Array]:
        """Returns for each held-out example whether it is classified right, and its loss.

        Of several labels at once, it is the share that is right.

        Args:
            params: all parameters.
            examples: examples that are not among the private ones, without augmentation.
        """

        def one(example: Examples) -> tuple[jax.Array, jax.Array]:
            logits = self._logits(params, self._scaled(example.x))
            return _right(logits, example.y), _loss(logits, example.y)

        size = min(_EVALUATED_AT_ONCE, examples.y.shape[0])
        return jax.lax.map(one, examples, batch_size=size)

    def _logits(self, params: Any, x: jax.Array) -> jax.Array:
        if self.config.precision is None:
            return self.network.apply(params, x)

        def halved(leaf: jax.Array) -> jax.Array:
            floating = jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(self.config.precision) if floating else leaf

        params, x = jax.tree.map(halved, (params, x))
        return self.network.apply(params, x).astype(jnp.float32)

    def _scaled(self, x: jax.Array) -> jax.Array:
        if self.pixels is None:
            return x
        mean, std = (jnp.asarray(v, jnp.float32) for v in (self.pixels.mean, self.pixels.std))
        return (x.astype(jnp.float32) / self.pixels.full - mean) / std


def _loss(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the cross entropy of one label, or the mean of those of several labels at once."""
    if y.ndim == 0:
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, y.astype(logits.dtype)))


def _right(logits: jax.Array, y: jax.Array) -> jax.Array:
    if y.ndim == 0:
        return jnp.argmax(logits) == y
    return jnp.mean((logits > 0) == (y > 0))


def flip(image: jax.Array, key: jax.Array) -> jax.Array:
    """Mirrors an image (H, W, C) left to right, half of the time."""
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def shift(image: jax.Array, key: jax.Array) -> jax.Array:
    """Moves an image by up to an eighth of its size, its border repeated by reflection.

    A random crop of the reflected image, as usual for CIFAR-10 (4 pixels of 32).
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
    loss: Callable[[Any, jax.Array, jax.Array], jax.Array],
    names: Sequence[str],
    multiplicity: int,
) -> Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array]:
    """Returns ``f(params, x, y, key)``: the mean loss over K augmented copies of one example.

    ``f = (1/K) sum_k loss(params, augment(x, key_k), y)``. Its gradient is clipped once, so that
    one example still counts once, whatever K is.

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

    def one(params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        for i, name in enumerate(names):
            x = AUGMENTATIONS[name](x, jax.random.fold_in(key, i))
        return loss(params, x, y)

    def mean(params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, multiplicity)
        return jnp.mean(jax.vmap(one, in_axes=(None, None, None, 0))(params, x, y, keys))

    return mean
