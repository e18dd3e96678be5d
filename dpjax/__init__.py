"""dpjax: differentially private deep learning in JAX, with one object for training and accounting.

Submodules are loaded on first use, so that importing the package is fast and ``dpjax --help`` does
not wait for JAX.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpjax import (
        accounting,
        adaclip,
        audit,
        data,
        gradients,
        methods,
        models,
        momentum,
        nnx,
        noise,
        papers,
        rules,
        sampling,
        schedules,
        testing,
        thresholds,
        train,
    )
    from dpjax.accounting import calibrate, epsilon
    from dpjax.batch_sums import ClippedSum
    from dpjax.fit import FitState, Fitted, fit
    from dpjax.gradients import (
        Explanation,
        PerExampleGrads,
        explain,
        per_example_grads,
        refuse_batch_stats,
    )
    from dpjax.mechanism import Guarantee, Mechanism
    from dpjax.privatize import PrivatizeState, Released, clipped_sum, privatize

__version__ = "0.1.0"

__all__ = [
    "ClippedSum",
    "Explanation",
    "FitState",
    "Fitted",
    "Guarantee",
    "Mechanism",
    "PerExampleGrads",
    "PrivatizeState",
    "Released",
    "__version__",
    "accounting",
    "adaclip",
    "audit",
    "calibrate",
    "clipped_sum",
    "data",
    "epsilon",
    "explain",
    "fit",
    "gradients",
    "methods",
    "models",
    "momentum",
    "nnx",
    "noise",
    "papers",
    "per_example_grads",
    "privatize",
    "refuse_batch_stats",
    "rules",
    "sampling",
    "schedules",
    "testing",
    "thresholds",
    "train",
]

_HOMES = {
    "ClippedSum": "batch_sums",
    "FitState": "fit",
    "Fitted": "fit",
    "calibrate": "accounting",
    "epsilon": "accounting",
    "fit": "fit",
    "Explanation": "gradients",
    "Guarantee": "mechanism",
    "Mechanism": "mechanism",
    "PerExampleGrads": "gradients",
    "PrivatizeState": "privatize",
    "Released": "privatize",
    "clipped_sum": "privatize",
    "explain": "gradients",
    "per_example_grads": "gradients",
    "privatize": "privatize",
    "refuse_batch_stats": "gradients",
}


class _Package(ModuleType):
    """The package as a module whose functions are not shadowed by the files they live in."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing dpjax/privatize.py would otherwise replace the function by the module.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        if name in _HOMES:
            value = getattr(importlib.import_module(f"dpjax.{_HOMES[name]}"), name)
            setattr(self, name, value)
            return value
        if name in __all__:
            return importlib.import_module(f"dpjax.{name}")
        raise AttributeError(f"module 'dpjax' has no attribute {name!r}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
