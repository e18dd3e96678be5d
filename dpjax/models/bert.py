"""BERT, and what has its layers: MiniLM."""

from collections.abc import Sequence

from flax import nnx

from dpjax import _checks
from dpjax.models.encoder import EncoderNet
from dpjax.models.hugging_face import (
    ENCODER_BLOCK,
    ENCODER_EMBEDDINGS,
    ENCODER_OPTIONS,
    SEGMENTS,
    Family,
)

__all__ = ["BERT", "bert"]


def bert(
    shape: Sequence[int],
    classes: int,
    *,
    vocabulary: int,
    rngs: nnx.Rngs,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    positions: int = 512,
    separator: int = 1,
    padding: int = 0,
    epsilon: float = 1e-12,
    activation: str = "gelu",
    pooling: str = "first",
    start: int | None = None,
    stop: int | None = None,
) -> EncoderNet:
    """BERT-base as a classifier, without dropout.

    109,482,240 parameters and the classifier's with BERT's own vocabulary of 30,522. DC-SGD trains
    "the last encoder, the Bert pooler, and the classifier": ``model.trainable = ["blocks/-1",
    "pooler", "classifier"]``, 7,680,002 for two classes.

    Args:
        shape: (length,) of one example.
        classes: how many logits.
        vocabulary: how many tokens there are, padding among them.
        rngs: where the initial parameters come from.
        layers: how many blocks.
        width: features of a token.
        heads: of each attention.
        hidden: width between the two dense layers of a block.
        positions: how long a sequence may be.
        separator: the token between two texts: 1 in this package's data sets of hashed words, 102
            in BERT's own vocabulary. What follows it is of the second segment.
        padding: the padding's token.
        epsilon: of the normalisations.
        activation: between the dense layers of a block.
        pooling: "first" or "mean", what the pooler reads; "first_direct" or "mean_direct" for
            logits without the pooler.
        start: begin with the states before this block, in place of tokens.
        stop: end with the states after so many blocks, in place of logits.

    References: Devlin et al., BERT, 2018, https://arxiv.org/abs/1810.04805; DC-SGD, section VI.
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
        segments=2,
        separator=_checks.integer("separator", separator, at_least=1),
        padding=padding,
        offset=0,
        epsilon=epsilon,
        activation=activation,
        pooling=pooling,
        pooler_activation="tanh",
        start=start,
        stop=stop,
        rngs=rngs,
    )


BERT = Family(
    name="bert",
    prefix="bert.",
    classifier="BertForSequenceClassification",
    options=ENCODER_OPTIONS,
    fixed={"position_embedding_type": "absolute", "type_vocab_size": 2},
    layers={**ENCODER_EMBEDDINGS, **SEGMENTS, "pooler": "pooler.dense"},
    block="encoder.layer.{}.",
    block_layers=ENCODER_BLOCK,
    head={"classifier": "classifier"},
)
"""BERT's names in Hugging Face's files."""
