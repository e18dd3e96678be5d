"""BERT, and MiniLM, which has the same layers."""

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

    It has 109,482,240 parameters plus the classifier's, with BERT's own vocabulary of 30,522.
    DC-SGD trains "the last encoder, the Bert pooler, and the classifier": ``model.trainable =
    ["blocks/-1", "pooler", "classifier"]``, 7,680,002 parameters for two classes.

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
        separator: the token between two texts: 1 in this package's data sets of hashed words, 102
            in BERT's own vocabulary. Tokens after it belong to the second segment.
        padding: the padding token.
        epsilon: added to the variance in each normalisation.
        activation: the activation between the dense layers of a block.
        pooling: what the pooler reads, "first" or "mean"; "first_direct" or "mean_direct" for
            logits without the pooler.
        start: if given, the input is the states before this block, not tokens.
        stop: if given, the output is the states after this many blocks, not logits.

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
