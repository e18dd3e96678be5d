"""One example after the other, or all at once: whichever the processor is faster at."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from dpjax.gradients.ghost.sites import Site

__all__ = ["over_examples"]

# Below this much work an example is not worth a turn of a loop; several share one.
_MULTIPLY_ADDS = 150_000


def over_examples(fn: Callable[[Any], Any], given: Any, sites: Sequence[Site]) -> Any:
    """Applies `fn` to every example's part of `given`.

    On a CPU one example at a time: its factors stay in the cache, and a product of matrices is
    several times as fast as the same one in a batch of products. Elsewhere all at once.

    Args:
        fn: a function of one example's part.
        given: pytree with a leading axis of examples.
        sites: what is multiplied in `fn`, if anything.
    """
    work = [g * t * k * c for g, t, k, c in (s.sizes for s in sites if s.product is not None)]
    if not work or jax.default_backend() != "cpu":
        return jax.vmap(fn)(given)
    rows = len(jax.tree.leaves(given)[0])
    together = _divisor(rows, -(-_MULTIPLY_ADDS // max(1, *work)))
    if together == rows:
        return jax.vmap(fn)(given)
    return jax.lax.map(fn, given, batch_size=together if together > 1 else None)


def _divisor(rows: int, most: int) -> int:
    """Returns the largest divisor of `rows` that is at most `most`."""
    return max((d for d in range(1, min(rows, most) + 1) if rows % d == 0), default=1)
