"""dpjax: differentially private deep learning in JAX, where one object runs and is accounted."""

from dpjax import (
    accounting,
    gradients,
    methods,
    noise,
    rules,
    sampling,
    schedules,
    testing,
    thresholds,
)
from dpjax.batch_sums import ClippedSum
from dpjax.gradients import (
    Explanation,
    PerExampleGrads,
    explain,
    per_example_grads,
    refuse_batch_stats,
)
from dpjax.mechanism import Guarantee, Mechanism
from dpjax.methods import Method
from dpjax.privatize import PrivatizeState, Released, clipped_sum, privatize

__version__ = "0.1.0"

__all__ = [
    "ClippedSum",
    "Explanation",
    "Guarantee",
    "Mechanism",
    "Method",
    "PerExampleGrads",
    "PrivatizeState",
    "Released",
    "__version__",
    "accounting",
    "clipped_sum",
    "explain",
    "gradients",
    "methods",
    "noise",
    "per_example_grads",
    "privatize",
    "refuse_batch_stats",
    "rules",
    "sampling",
    "schedules",
    "testing",
    "thresholds",
]
