"""AlexNet, for large images and for small ones."""

from collections.abc import Sequence

from flax import nnx

from dpjax import _checks
from dpjax.models.activations import Activation
from dpjax.models.convnet import AdaptiveAvgPool, Conv, ConvNet, Layer, MaxPool

__all__ = ["alexnet", "alexnet_small"]


def alexnet(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    hidden: int = 4096,
    activation: Activation = "relu",
    start: str = "lecun",
) -> ConvNet:
    """AlexNet in torchvision's one-column form: 61,100,840 parameters for 1000 classes.

    Lin et al. use it on Imagenette and give only the name. Images must be at least 63x63; the last
    pooling reduces any size to 6x6. There is no dropout: noise and clipping regularise enough, and
    the loss stays a function of parameters and example alone.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        hidden: the width of the two dense layers before the last.
        activation: a spec for `dpjax.models.activation`; Papernot et al.'s baseline uses a tempered
            sigmoid.
        start: how parameters are initialised, "lecun" or "pytorch".

    Reference: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014.
    """
    hidden = _checks.integer("hidden", hidden, at_least=1)
    third = MaxPool(3, 2)
    layers: list[Layer] = [Conv(64, 11, 4, 2), third, Conv(192, 5, 1, 2), third]
    layers += [Conv(384, 3, 1, 1), Conv(256, 3, 1, 1), Conv(256, 3, 1, 1), third]
    layers += [AdaptiveAvgPool(6)]
    return ConvNet(
        shape,
        classes,
        layers=layers,
        hidden=[hidden, hidden],
        activation=activation,
        start=start,
        rngs=rngs,
    )


def alexnet_small(
    shape: Sequence[int], classes: int, *, rngs: nnx.Rngs, start: str = "lecun"
) -> ConvNet:
    """AlexNet for images of at least 29x29, in the usual reduction for CIFAR's 32x32.

    It has the same five convolutions, the first with padding 5, max 2x2 stride 2 instead of 3x3,
    and one dense layer instead of three: 2,472,266 parameters for ten classes on 32x32x3.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        start: how parameters are initialised, "lecun" or "pytorch".
    """
    half = MaxPool(2, 2)
    layers: list[Layer] = [Conv(64, 11, 4, 5), half, Conv(192, 5, 1, 2), half]
    layers += [Conv(384, 3, 1, 1), Conv(256, 3, 1, 1), Conv(256, 3, 1, 1), half]
    return ConvNet(shape, classes, layers=layers, start=start, rngs=rngs)
