"""The benchmarked networks, their sizes and batches; imports neither JAX nor PyTorch."""

from dataclasses import dataclass, replace

__all__ = ["CLIP", "LEARNING_RATE", "SIGMA", "EncoderSize", "Workload", "workloads"]

CLIP, SIGMA, LEARNING_RATE = 1.0, 1.0, 1e-3  # of every private step


@dataclass(frozen=True)
class EncoderSize:
    """An attention encoder's sizes; the embeddings and the first `frozen` blocks are not trained.

    With ``frozen=0``, everything is trained.
    """

    width: int
    heads: int
    mlp: int
    blocks: int
    frozen: int = 0


@dataclass(frozen=True)
class Workload:
    """A network, the shape of its inputs, and the batch size.

    Attributes:
        name: its name for ``--models``.
        title: its title in tables.
        network: "small_cnn", "resnet18", "lstm" or "encoder".
        batch: the number of rows.
        shape: the shape of one example; (T,) for tokens.
        classes: the number of logits.
        vocabulary: the number of tokens, including 0, which is never drawn; None for images.
        encoder: the encoder's sizes.
    """

    name: str
    title: str
    network: str
    batch: int
    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None
    encoder: EncoderSize | None = None

    def with_batch(self, batch: int | None) -> "Workload":
        """Returns the workload with another batch size, if one is given."""
        return self if batch is None else replace(self, batch=batch)


def workloads(bert_blocks: int = 12) -> dict[str, Workload]:
    """Returns all workloads by name; BERT's encoder has `bert_blocks` blocks, the last trained."""
    bert = EncoderSize(768, 12, 3072, bert_blocks, frozen=bert_blocks - 1)
    found = [
        Workload("cnn", "CNN of 26,010 parameters, 28x28", "small_cnn", 256, (28, 28, 1), 10),
        Workload("resnet18-16", "ResNet-18-GN, 32x32", "resnet18", 16, (32, 32, 3), 10),
        Workload("resnet18-64", "ResNet-18-GN, 32x32", "resnet18", 64, (32, 32, 3), 10),
        Workload(
            "encoder",
            "attention encoder, 4 blocks of width 256, T = 128",
            "encoder",
            32,
            (128,),
            10,
            1000,
            EncoderSize(256, 4, 1024, 4),
        ),
        Workload(
            "bert",
            f"last of {bert_blocks} blocks of BERT-base's shape, T = 128",
            "encoder",
            8,
            (128,),
            2,
            30_522,
            bert,
        ),
        Workload("lstm", "LSTM of two layers, T = 15", "lstm", 256, (15,), 18, 57),
    ]
    return {workload.name: workload for workload in found}
