"""DistilBERT: half of BERT's blocks, no segments, and a head with ReLU."""

from collections.abc import Sequence

from flax import nnx

from dpjax.models.encoder import EncoderNet
from dpjax.models.hugging_face import ENCODER_EMBEDDINGS, Family

__all__ = ["DISTILBERT", "distilbert"]


def distilbert(
    shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int,
    rngs: nnx.Rngs,
    layers: int = 6,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    positions: int = 512,
    padding: int = 0,
    epsilon: float = 1e-12,
    activation: str = "gelu",
    pooling: str = "first",
    start: int | None = None,
    stop: int | None = None,
) -> EncoderNet:
    """DistilBERT as a classifier, without dropout.

    The head is a dense layer with ReLU, also called ``pooler`` here, and the logits.

    Args:
        shape: (length,) of one example.
        classes: the number of logits.
        vocabulary: the number of tokens, including padding.
        rngs: draws the initial parameters.
        layers: the number of blocks.
        width: the number of features of a token.
        heads: the number of attention heads.
        hidden: the width between the two dense layers of a block.
        positions: the maximum length of a sequence.
        padding: the padding token.
        epsilon: added to the variance in each normalisation.
        activation: the activation between the dense layers of a block.
        pooling: what the pooler reads, "first" or "mean"; "first_direct" or "mean_direct" for
            logits without the pooler.
        start: if given, the input is the states before this block, not tokens.
        stop: if given, the output is the states after this many blocks, not logits.

    Reference: Sanh et al., DistilBERT, 2019, https://arxiv.org/abs/1910.01108.
    """
    return EncoderNet(
        shape,
        classes,
        vocabulary=vocabulary,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=positions,
        segments=0,
        separator=None,
        padding=padding,
        offset=0,
        epsilon=epsilon,
        activation=activation,
        pooling=pooling,
        pooler_activation="relu",
        start=start,
        stop=stop,
        rngs=rngs,
    )


DISTILBERT = Family(
    name="distilbert",
    prefix="distilbert.",
    classifier="DistilBertForSequenceClassification",
    options={
        "vocabulary": "vocab_size",
        "layers": "n_layers",
        "width": "dim",
        "heads": "n_heads",
        "hidden": "hidden_dim",
        "positions": "max_position_embeddings",
        "padding": "pad_token_id",
        "activation": "activation",
    },
    fixed={"sinusoidal_pos_embds": False},
    layers=ENCODER_EMBEDDINGS,
    block="transformer.layer.{}.",
    block_layers={
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "output": "attention.out_lin",
        "norm1": "sa_layer_norm",
        "inner": "ffn.lin1",
        "outer": "ffn.lin2",
        "norm2": "output_layer_norm",
    },
    head={"pooler": "pre_classifier", "classifier": "classifier"},
)
"""DistilBERT's names in Hugging Face's files."""
