"""Per-example norms and weighted sums without per-example gradients, for any loss.

The loss of one example is traced, and the equations where parameters meet data are found
(`analysis`). At each of them a zero is added to the result, the tap, and the data is kept
(`tapped`); one backward pass with respect to the taps gives every cotangent. From data and
cotangents follow the norms (`gram`, `forms`) and the weighted sum (`sums`), by whichever way costs
less (`cost`, `blocks`).
"""

from dpjax.gradients.ghost.auto import auto_engine
from dpjax.gradients.ghost.engine import ghost_engine
from dpjax.gradients.ghost.explanation import Explanation, LeafExplanation, explain
from dpjax.gradients.ghost.two_pass import ghost_two_pass_engine

__all__ = [
    "Explanation",
    "LeafExplanation",
    "auto_engine",
    "explain",
    "ghost_engine",
    "ghost_two_pass_engine",
]
