"""How per-example gradients are obtained: the interface, the chunk loop and the engines.

Nothing here is specific to privacy. A rule needs norms and a weighted sum; an engine provides both.
"""

from dpjax.gradients.ghost import Explanation, explain
from dpjax.gradients.groups import GroupIndex, group_index, labels
from dpjax.gradients.interface import BatchSums, PerExampleGrads
from dpjax.gradients.model_state import refuse_batch_stats
from dpjax.gradients.norms import combined_norm
from dpjax.gradients.per_example import (
    ENGINES,
    as_per_example_grads,
    merged,
    per_example_grads,
    trainable,
)

__all__ = [
    "ENGINES",
    "BatchSums",
    "Explanation",
    "GroupIndex",
    "PerExampleGrads",
    "as_per_example_grads",
    "combined_norm",
    "explain",
    "group_index",
    "labels",
    "merged",
    "per_example_grads",
    "refuse_batch_stats",
    "trainable",
]
