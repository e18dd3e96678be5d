"""Per-example norms and weighted sums without per-example gradients, for any loss.

`trace` traces the loss of one example and finds the equations where parameters meet data.
`contractions` brings each parameter operand there to a common form, and `planner` chooses the
cheapest way to compute its norm. `backward` computes the cotangents at all of them in one backward
pass, which `work` keeps with its data. From both, `norms` computes the norms and `sums` the
weighted sums. `engine` puts all of this together.
"""

from dpjax.gradients.ghost.engine import auto_engine, ghost_engine, ghost_two_pass_engine
from dpjax.gradients.ghost.planner import Explanation, LeafExplanation, explain

__all__ = [
    "Explanation",
    "LeafExplanation",
    "auto_engine",
    "explain",
    "ghost_engine",
    "ghost_two_pass_engine",
]
