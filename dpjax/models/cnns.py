"""The small convolutional networks of DC-SGD, DP-PSASC and Lin et al."""

from collections.abc import Sequence

from flax import nnx

from dpjax import _checks
from dpjax.models.activations import Activation
from dpjax.models.convnet import (
    AdaptiveAvgPool,
    AvgPool,
    Conv,
    ConvNet,
    Layer,
    MaxPool,
    Repeated,
)
from dpjax.models.shapes import image_shape

__all__ = ["cnn4", "lin_b1", "lin_b2", "lin_b3", "lin_b4", "small_cnn"]


def small_cnn(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    activation: Activation = "relu",
    start: str = "lecun",
    channels: int | None = None,
) -> ConvNet:
    """The small network of DC-SGD, of Opacus' MNIST example and of Papernot et al.

    conv 16 8x8 stride 2 padding 3, max 2x2 stride 1, conv 32 4x4 stride 2, max 2x2 stride 1,
    dense 32, dense. It has 26,010 parameters on 28x28x1 and 28,058 on 28x28x3. DC-SGD prints the
    latter number even for MNIST, because its authors' program turns a grey image into three equal
    channels (``channels=3``). With ``activation="tanh"`` it is the "4-layer CNN" (two convolutions,
    two dense layers) of the works that Automatic Clipping follows on MNIST. DC-SGD uses PyTorch's
    defaults, ``start="pytorch"``; Flax's own initialisation learns faster under noise.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        activation: a spec for `dpjax.models.activation`.
        start: how parameters are initialised, "lecun" or "pytorch".
        channels: the number of equal channels to make from a grey image; None for no change.

    Reference: Papernot et al. 2020, table 1; Wei et al., DC-SGD, section V-B.
    """
    layers: list[Layer] = [Conv(16, 8, 2, 3), MaxPool(2, 1), Conv(32, 4, 2), MaxPool(2, 1)]
    if channels is not None:
        if image_shape(shape)[2] != 1:
            raise ValueError(f"channels = {channels}: expected None, {tuple(shape)} is not grey")
        layers.insert(0, Repeated(_checks.integer("channels", channels, at_least=1)))
    return ConvNet(
        shape, classes, layers=layers, hidden=[32], activation=activation, start=start, rngs=rngs
    )


def cnn4(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    activation: Activation = "relu",
    start: str = "lecun",
) -> ConvNet:
    """Four convolutions and one dense layer, as DP-PSASC (and PSAC) describe theirs on MNIST.

    The papers give no widths; these are from Opacus' CIFAR-10 example, which has the same five
    layers: conv 3x3 padding 1 with 32, 64, 64 and 128 channels, average 2x2 stride 2 after the
    first three, average over the whole image after the last.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        activation: a spec for `dpjax.models.activation`.
        start: how parameters are initialised, "lecun" or "pytorch".

    Reference: Huang et al., DP-PSASC, section V, model settings.
    """
    half = AvgPool(2, 2)
    convs = [Conv(channels, 3, 1, 1) for channels in (32, 64, 64, 128)]
    layers: list[Layer] = [
        convs[0],
        half,
        convs[1],
        half,
        convs[2],
        half,
        convs[3],
        AdaptiveAvgPool(1),
    ]
    return ConvNet(shape, classes, layers=layers, activation=activation, start=start, rngs=rngs)


def lin_b1(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    activation: Activation = "relu",
    start: str = "lecun",
) -> ConvNet:
    """Lin et al.'s network for MNIST and Fashion-MNIST, table B1 as printed.

    conv 16 3x3 stride 2 padding 1, max 2x2 stride 1, conv 32 3x3 padding 1, max 2x2 stride 1,
    dense 32, dense. The table prints 32 units for the last layer too, which is impossible for ten
    classes; here it has one unit per class. The text says that this is Papernot et al.'s network,
    whose windows are 8x8 and 4x4 (`small_cnn`); the windows here are the table's.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        activation: a spec for `dpjax.models.activation`; their baseline uses "tempered_sigmoid".
        start: how parameters are initialised, "lecun" or "pytorch".

    Reference: Lin et al., adaptive gradient clipping, appendix B.
    """
    layers: list[Layer] = [Conv(16, 3, 2, 1), MaxPool(2, 1), Conv(32, 3, 1, 1), MaxPool(2, 1)]
    return ConvNet(
        shape, classes, layers=layers, hidden=[32], activation=activation, start=start, rngs=rngs
    )


def lin_b2(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    activation: Activation = "relu",
    start: str = "lecun",
) -> ConvNet:
    """Lin et al.'s (and Papernot et al.'s) network for CIFAR-10 and CIFAR-100, table B2.

    Three pairs of convolutions 3x3 padding 1 with 32, 64 and 128 channels, each pair followed by
    max 2x2 stride 2; dense 128, dense.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        activation: a spec for `dpjax.models.activation`.
        start: how parameters are initialised, "lecun" or "pytorch".

    Reference: Lin et al., adaptive gradient clipping, appendix B.
    """
    layers: list[Layer] = []
    for channels in (32, 64, 128):
        layers += [Conv(channels, 3, 1, 1), Conv(channels, 3, 1, 1), MaxPool(2, 2)]
    return ConvNet(
        shape, classes, layers=layers, hidden=[128], activation=activation, start=start, rngs=rngs
    )


def lin_b3(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    activation: Activation = "relu",
    start: str = "lecun",
) -> ConvNet:
    """Lin et al.'s smaller network for MNIST and Fashion-MNIST, table B3.

    conv 16 5x5, average 2x2 stride 2, conv 32 5x5, average 2x2 stride 2, dense 512, dense.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        activation: a spec for `dpjax.models.activation`.
        start: how parameters are initialised, "lecun" or "pytorch".

    Reference: Lin et al., adaptive gradient clipping, appendix B.
    """
    layers: list[Layer] = [Conv(16, 5), AvgPool(2, 2), Conv(32, 5), AvgPool(2, 2)]
    return ConvNet(
        shape, classes, layers=layers, hidden=[512], activation=activation, start=start, rngs=rngs
    )


def lin_b4(
    shape: Sequence[int],
    classes: int,
    *,
    rngs: nnx.Rngs,
    activation: Activation = "relu",
    start: str = "lecun",
) -> ConvNet:
    """Lin et al.'s smaller network for CIFAR-10 and CIFAR-100, table B4.

    conv 32 5x5 padding 2, max 2x2 stride 2, conv 32 5x5, max 2x2 stride 2, dense 128, dense.

    Args:
        shape: (height, width, channels) of one example.
        classes: the number of logits.
        rngs: draws the initial parameters.
        activation: a spec for `dpjax.models.activation`.
        start: how parameters are initialised, "lecun" or "pytorch".

    Reference: Lin et al., adaptive gradient clipping, appendix B.
    """
    layers: list[Layer] = [Conv(32, 5, 1, 2), MaxPool(2, 2), Conv(32, 5), MaxPool(2, 2)]
    return ConvNet(
        shape, classes, layers=layers, hidden=[128], activation=activation, start=start, rngs=rngs
    )
