"""One example after the other, or all at once: whichever the processor is faster at."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from dpjax.gradients.ghost.sites import Site

__all__ = ["one_at_a_time", "over_examples"]

# An example with fewer positions and less work than this is not worth a turn of a loop.
_POSITIONS = 64
_MULTIPLY_ADDS = 1e6


def over_examples(fn: Callable[[Any], Any], given: Any, sites: Sequence[Site]) -> Any:
    """Applies `fn` to every example's part of `given`.

    On a CPU one example at a time if its products are large: its factors stay in the cache, and a
    product of matrices is several times as fast as the same one in a batch of products.

    Args:
        fn: a function of one example's part.
        given: pytree with a leading axis of examples.
        sites: what is multiplied in `fn`, if anything.
    """
    return jax.lax.map(fn, given) if one_at_a_time(sites) else jax.vmap(fn)(given)


def one_at_a_time(sites: Sequence[Site]) -> bool:
    """Says whether products at these sites are better taken for one example after the other."""
    large = any(_is_large(site) for site in sites if site.product is not None)
    return large and jax.default_backend() == "cpu"


def _is_large(site: Site) -> bool:
    g, t, k, c = site.sizes
    return t > 1 and (t >= _POSITIONS or g * t * k * c >= _MULTIPLY_ADDS)
