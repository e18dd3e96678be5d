"""Per-example norms and weighted sums without per-example gradients, for any loss.

The loss of one example is traced, and the equations where parameters meet data are found (`trace`).
Each parameter operand there is brought to a common form (`contractions`), and the cheapest way to
its norm is chosen (`planner`). One backward pass gives the cotangents at all of them (`backward`);
from data and cotangents follow the norms (`norms`) and the weighted sum (`engine`).
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
