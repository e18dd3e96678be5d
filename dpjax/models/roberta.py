"""RoBERTa: BERT's layers, with positions that start after the padding's, and one segment."""

from collections.abc import Sequence

from flax import nnx

from dpjax.models.encoder import EncoderNet
from dpjax.models.hugging_face import (
    ENCODER_BLOCK,
    ENCODER_EMBEDDINGS,
    ENCODER_OPTIONS,
    SEGMENTS,
    Family,
)

__all__ = ["ROBERTA", "roberta"]


def roberta(
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
    padding: int = 0,
    epsilon: float = 1e-5,
    activation: str = "gelu",
    pooling: str = "first",
    start: int | None = None,
    stop: int | None = None,
) -> EncoderNet:
    """RoBERTa-base as a classifier, without dropout.

    RoBERTa-large has ``layers = 24``, ``width = 1024``, ``heads = 16`` and ``hidden = 4096``. The
    head, a dense layer with tanh and the logits, is also called ``pooler`` and ``classifier`` here.
    As published, the first token uses row ``padding + 1`` of the position table, and padding uses
    row `padding`, so the table has ``positions + padding + 1`` rows. There is one segment.

    Args:
        shape: (length,) of one example.
        classes: the number of logits.
        vocabulary: the number of tokens, including padding; RoBERTa's own has 50,265.
        rngs: draws the initial parameters.
        layers: the number of blocks.
        width: the number of features of a token.
        heads: the number of attention heads.
        hidden: the width between the two dense layers of a block.
        positions: the maximum length of a sequence.
        padding: the padding token: 0 in this package's data sets of hashed words, 1 in RoBERTa's
            own vocabulary.
        epsilon: added to the variance in each normalisation.
        activation: the activation between the dense layers of a block.
        pooling: what the pooler reads, "first" or "mean"; "first_direct" or "mean_direct" for
            logits without the pooler.
        start: if given, the input is the states before this block, not tokens.
        stop: if given, the output is the states after this many blocks, not logits.

    References: Liu et al., RoBERTa, 2019, https://arxiv.org/abs/1907.11692; Automatic Clipping,
    tables 2 and 3.
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
        segments=1,
        separator=None,
        padding=padding,
        offset=padding + 1,
        epsilon=epsilon,
        activation=activation,
        pooling=pooling,
        pooler_activation="tanh",
        start=start,
        stop=stop,
        rngs=rngs,
    )


ROBERTA = Family(
    name="roberta",
    prefix="roberta.",
    classifier="RobertaForSequenceClassification",
    options=ENCODER_OPTIONS,
    fixed={"position_embedding_type": "absolute", "type_vocab_size": 1},
    layers={**ENCODER_EMBEDDINGS, **SEGMENTS},
    block="encoder.layer.{}.",
    block_layers=ENCODER_BLOCK,
    head={"pooler": "classifier.dense", "classifier": "classifier.out_proj"},
    positions_after_padding=True,
)
"""RoBERTa's names in Hugging Face's files."""
