"""The refusal of per-example gradients where a transformation expects plain gradients."""

import sys
from types import FrameType
from typing import NoReturn

__all__ = ["refuse_flattening"]


def refuse_flattening(grads: object) -> NoReturn:
    """Raises a `TypeError` in place of flattening per-example gradients as a pytree.

    Args:
        grads: the per-example gradients.
    """
    del grads
    raise TypeError(_placement_error())


def _placement_error() -> str:
    """Returns the error message: who treated these as plain gradients, and what to do instead."""
    who = _caller()
    if who == "MultiSteps":
        return (
            "optax.MultiSteps would add up per-example gradients: expected dpjax.clipped_sum for "
            "the parts of a batch, their sum with +, and one tx.update of the sum"
        )
    if who is None:
        return (
            "per-example gradients cannot leave the function that made them or be mapped over: "
            "expected dpjax.privatize(...).update in the same function, before anything else"
        )
    if who == "flax's Optimizer":
        return (
            "nnx.Optimizer takes no per-example gradients: expected dpjax.nnx.Optimizer in its "
            "place, made with the same arguments"
        )
    return (
        f"{who} would take per-example gradients for gradients: expected dpjax.privatize first in "
        f"the chain and around nothing else, and {who} behind it"
    )


def _caller() -> str | None:
    """Returns the name of the optax or Flax transformation whose update is running, if any."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "").split(".")[0]
        name, *_, function = [frame.f_code.co_qualname, *frame.f_code.co_qualname.split(".")]
        if module in ("optax", "flax") and function.startswith("update"):
            name = name.split(".")[0]
            return name if name == "MultiSteps" else f"{module}'s {name}"
        frame = frame.f_back
    return None
