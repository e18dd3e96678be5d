"""The weighted sum at a site, as the ordinary gradient of all examples together."""

from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.ghost.sites import HIGHEST, Given, Site, wide
from dpjax.gradients.jaxprs import evaluate
from dpjax.gradients.shards import varying, varying_zero

__all__ = ["weighted_site_sum"]


def weighted_site_sum(site: Site, given: Given, weights: jax.Array) -> jax.Array:
    """Returns ``sum_i w_i g_i`` by a site's node, in the shape of the node.

    Args:
        site: a contraction, or a lookup of rows.
        given: what the pass left for all examples.
        weights: (N,).
    """
    cotangent = wide(given.cotangents[0])
    weighted = cotangent * weights.astype(cotangent.dtype).reshape(
        (-1,) + (1,) * (cotangent.ndim - 1)
    )
    given = Given(tuple(wide(x) for x in given.kept), (weighted,))
    if site.meeting.name == "dot_general":
        a, b = jax.vmap(site.factors)(given)
        return site.assembled(jnp.einsum(f"n{site.layouts[0]},ngtc->gkc", a, b, precision=HIGHEST))
    return _transposed(site, given, cotangent.dtype)


def _transposed(site: Site, given: Given, dtype: Any) -> jax.Array:
    """Returns the gradient of the batched equation by the operand that all examples share."""
    meeting = site.meeting
    exact = {"precision": (HIGHEST, HIGHEST), "preferred_element_type": jnp.dtype(dtype)}
    exact = {name: value for name, value in exact.items() if name in meeting.eqn.params}

    def one(value: jax.Array, kept: Any) -> jax.Array:
        return evaluate(meeting.eqn, meeting.operands(kept, {site.position: value}), exact)[0]

    batched: Any = one
    for loop in reversed(meeting.loops):
        batched = jax.vmap(batched, in_axes=(0 if loop in site.node.loops else None, 0))
    batched = jax.vmap(batched, in_axes=(None, 0))

    def pulled(given: Given) -> jax.Array:
        # Its own on each device: the gradient by a shared one would be summed over devices.
        shared = varying(jnp.zeros(site.node.shape, dtype), varying_zero(given))
        return jax.vjp(lambda value: batched(value, given.kept), shared)[1](given.cotangents[0])[0]

    if jax.default_backend() == "cpu":
        pulled = channels_last_convolutions(pulled)
    return pulled(given)
