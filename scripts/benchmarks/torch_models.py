"""The workloads' networks in PyTorch, from layers that every mode of Opacus supports."""

from itertools import pairwise

import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads import EncoderSize, Workload

__all__ = ["build", "examples"]


def build(workload: Workload, private: bool) -> nn.Module:
    """Builds a workload's network; `private` selects Opacus's LSTM instead of PyTorch's own."""
    if workload.network == "small_cnn":
        return small_cnn(workload.classes)
    if workload.network == "resnet18":
        return ResNet18(workload.classes)
    vocabulary = workload.vocabulary or 0
    if workload.encoder is not None:
        return Encoder(workload.encoder, workload.shape[0], vocabulary, workload.classes)
    return LSTM(vocabulary, workload.classes, DPLSTM if private else nn.LSTM)


def examples(workload: Workload) -> tuple[Tensor, Tensor]:
    """Draws a batch; images have their channels first."""
    if workload.vocabulary is None:
        height, width, channels = workload.shape
        x = torch.randn(workload.batch, channels, height, width)
    else:
        x = torch.randint(1, workload.vocabulary, (workload.batch, *workload.shape))
    return x, torch.randint(0, workload.classes, (workload.batch,))


def small_cnn(classes: int) -> nn.Module:
    """`dpjax.models`' small CNN on 28x28x1."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


class Block(nn.Module):
    """A basic residual block with group normalisation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Makes the layers."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.shortcut = nn.Sequential()
        if inputs != outputs or stride != 1:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.GroupNorm(32, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Applies the block."""
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(residual + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 with group normalisation and the stem for small images."""

    def __init__(self, classes: int) -> None:
        """Makes the layers."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, 64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        blocks = [Block(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
        self.blocks = nn.Sequential(*blocks)
        self.dense = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        x = self.blocks(F.relu(self.norm1(self.conv1(x))))
        return self.dense(x.mean((2, 3)))


class EncoderBlock(nn.Module):
    """Attention and an MLP, each with its input normalised and a residual connection."""

    def __init__(self, size: EncoderSize) -> None:
        """Makes the layers."""
        super().__init__()
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.query, self.key, self.value, self.output = (
            nn.Linear(size.width, size.width) for _ in range(4)
        )
        self.inner = nn.Linear(size.width, size.mlp)
        self.outer = nn.Linear(size.mlp, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the block."""
        normal = self.norm1(x)
        query, key, value = (
            layer(normal).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.outer(F.gelu(self.inner(self.norm2(x)), approximate="tanh"))


class Encoder(nn.Module):
    """The attention encoder; the frozen parts of its size get no gradient."""

    def __init__(self, size: EncoderSize, length: int, vocabulary: int, classes: int) -> None:
        """Makes the layers."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(length, size.width)
        self.blocks = nn.Sequential(*[EncoderBlock(size) for _ in range(size.blocks)])
        self.norm = nn.LayerNorm(size.width)
        self.dense = nn.Linear(size.width, classes)
        if size.frozen:
            for part in (self.tokens, self.positions, self.blocks[: size.frozen]):
                part.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits."""
        # Opacus expects a leading batch axis in every layer's input.
        positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return self.dense(self.norm(x).mean(1))


class LSTM(nn.Module):
    """`dpjax.models`' LSTM, on sequences without padding."""

    def __init__(self, vocabulary: int, classes: int, layer: type[nn.Module]) -> None:
        """Makes the layers."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 64)
        self.lstm = layer(64, 128, num_layers=2, batch_first=True)
        self.dense = nn.Linear(128, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits."""
        _, (last, _) = self.lstm(self.embedding(tokens))
        return self.dense(last[-1])
