"""Dense networks on flattened examples: a linear model, and one with a hidden layer."""

from collections.abc import Sequence

import jax
from flax import nnx

from dpjax import _checks
from dpjax.models.activations import Activation
from dpjax.models.activations import activation as activation_of
from dpjax.models.layers import dense
from dpjax.models.shapes import feature_count

__all__ = ["linear", "mlp"]


class linear(nnx.Module):
    """A linear model on given features, ``W x + b``, with ``(d + 1) classes`` parameters.

    On features of a pre-trained network (SimCLRv2's 4,096) this is the CIFAR-10 experiment of
    Automatic Clipping and DP-PSASC.

    Args:
        shape: the shape of one example, which is flattened.
        classes: the number of logits.
        rngs: draws the initial parameters.
    """

    def __init__(self, shape: Sequence[int], classes: int, *, rngs: nnx.Rngs) -> None:
        """Makes the layer."""
        self.dense = dense(feature_count(shape), classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        return self.dense(x.reshape(-1))


class mlp(nnx.Module):
    """One hidden layer, for features and for the embedded 8x8 digits.

    Args:
        shape: the shape of one example, which is flattened.
        classes: the number of logits.
        rngs: draws the initial parameters.
        hidden: the width of the hidden layer.
        activation: a spec for `dpjax.models.activation`.
        start: how parameters are initialised, "lecun" or "pytorch".
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        *,
        rngs: nnx.Rngs,
        hidden: int = 64,
        activation: Activation = "relu",
        start: str = "lecun",
    ) -> None:
        """Makes the layers."""
        hidden = _checks.integer("hidden", hidden, at_least=1)
        self.activation = activation_of(activation)
        widths = [(feature_count(shape), hidden), (hidden, classes)]
        self.dense = nnx.List([dense(a, b, start=start, rngs=rngs) for a, b in widths])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits of one example."""
        return self.dense[1](self.activation(self.dense[0](x.reshape(-1))))
