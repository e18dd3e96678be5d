"""What is the same for rules and thresholds: records survive, and rows do not see each other."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax._contract import require, some_batch
from dpjax._interpreter import traced
from dpjax._record import Record
from dpjax.testing.points import batch_sizes

__all__ = ["check_record", "check_rows"]

_AGREEMENT = 1e-5  # a row in a batch and alone: other loops round otherwise


def check_record(record: Record) -> None:
    """Checks that a record is frozen and survives its plain form."""
    declared = getattr(type(record), "__dataclass_params__", None)
    require(getattr(declared, "frozen", False), record, "is no frozen dataclass")
    back = type(record).from_plain(record.to_plain())
    require(back == record, record, "does not survive to_plain and from_plain")


def check_rows(
    record: Record,
    what: str,
    function: Callable[[Any], Any],
    c: float,
    rng: np.random.Generator,
) -> None:
    """Checks that what an example adds is the same alone and in batches of many sizes.

    Args:
        record: a rule or a threshold.
        what: "weight" or "statistic".
        function: of norms (B,), returning rows.
        c: the threshold in force, around which norms are drawn.
        rng: draws norms and sizes.
    """
    sizes = batch_sizes(rng)
    batches = {size: some_batch(rng, size, c) for size in sizes}
    every = np.concatenate(list(batches.values()))
    # One by one as rows of their own, so that nothing compiles for each size.
    alone = traced(jax.vmap(lambda n: function(n[None])[0]), every)(every)
    start = 0
    for size, norms in batches.items():
        together = np.asarray(traced(function, norms)(norms))
        shape = (size, *alone.shape[1:])
        require(together.shape == shape, record, f"the {what} of {size} norms is {together.shape}")
        mine = alone[start : start + size]
        same = np.isclose(together, mine, rtol=_AGREEMENT, atol=0, equal_nan=True)
        rows = same.reshape(size, -1).all(1)
        row = int(np.argmin(rows))
        require(
            rows.all(),
            record,
            f"the {what} of norm {norms[row]:.6g} in a batch of {size} depends on the others': "
            f"{together[row]} there, {mine[row]} alone",
        )
        start += size
