"""What a norm and its share of the weighted sum cost, estimated.

In multiply-adds of a matrix product, for one example; a number that is written to memory and read
again counts as many. Fitted to what single layers took on a CPU: see scripts/bench_costs.py.
"""

from typing import NamedTuple

from dpjax.gradients.ghost.embeddings import lookup_sizes
from dpjax.gradients.ghost.sites import Site

__all__ = ["Cost", "lookup_costs", "site_costs", "vmap_cost"]

# A gradient's entry that is kept for the weighted sum: written, read for the norm and for the sum.
_KEPT = 48.0
# The same for entries beyond as many as a core's cache holds.
_SPILLED, _CACHE = 144.0, 2.0**16
# An entry of the T x T inner products, beside the K + C that it is a sum of.
_ENTRY = 400.0
# A number that was looked up: brought together with those of the same row.
_SORTED = 200.0
# An entry of a window of an image: copied there, and read.
_COPIED = 16.0
# Beside one product of all examples, one product for each of them, as vmap takes it.
_VMAP_CONVOLUTION = 3.0


class Cost(NamedTuple):
    """Of the two ways: without the gradient and with the ordinary weighted sum, or formed."""

    without: float
    form: float


def site_costs(site: Site) -> Cost:
    """Returns the costs of a contraction."""
    g, t, k, c = site.sizes
    product = site.product
    windows = 0.0 if product is None or product.copies <= 1 else _COPIED * g * t * k
    inner = 0.0 if t == 1 else g * t * t * (k + c + _ENTRY)
    return Cost(windows + inner + g * t * k * c, windows + g * t * k * c + _kept(g * k * c))


def lookup_costs(site: Site) -> Cost:
    """Returns the costs of a lookup of rows: of those that were looked up, and of the table."""
    looked_up, table = lookup_sizes(site)
    return Cost((_KEPT + _SORTED) * looked_up, _kept(table))


def vmap_cost(site: Site) -> float:
    """Returns the cost of forming and keeping the gradient of a contraction through vmap."""
    g, t, k, c = site.sizes
    slower = _VMAP_CONVOLUTION if site.meeting.name == "conv_general_dilated" else 1.0
    return slower * g * t * k * c + _kept(g * k * c)


def _kept(entries: float) -> float:
    return _KEPT * min(entries, _CACHE) + _SPILLED * max(entries - _CACHE, 0)
