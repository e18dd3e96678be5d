"""The variants in JAX: how each turns a loss into a gradient, and its optax transformation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import dpjax
from benchmarks.workloads import CLIP

__all__ = ["JAX_VARIANTS", "LeftOut", "Variant"]


class LeftOut(Exception):
    """A variant that cannot run here; the message says why."""


@dataclass(frozen=True)
class Variant:
    """How a step gets its gradient.

    Attributes:
        gradients: ``gradients(loss, params, batch)``, the input of the transformation.
        privatizer: clips or adds noise, whichever `gradients` does not; returns the mean gradient.
    """

    gradients: Callable[[Any, Any, Any], Any]
    privatizer: optax.GradientTransformation


def non_private(batch_size: int, sigma: float) -> Variant:
    """The gradient of the mean loss."""
    del batch_size, sigma

    def gradients(loss: Any, params: Any, batch: Any) -> Any:
        return jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, batch)))(params)

    return Variant(gradients, optax.identity())


def of_engine(engine: str) -> Callable[[int, float], Variant]:
    """`dpjax.per_example_grads` with an engine, then `dpjax.privatize`."""

    def variant(batch_size: int, sigma: float) -> Variant:
        try:
            dpjax.per_example_grads(lambda params, x: jnp.sum(params * x), engine=engine)
        except ValueError as error:
            raise LeftOut(str(error)) from error
        mechanism = dpjax.Mechanism(dpjax.rules.abadi(), CLIP, sigma)

        def gradients(loss: Any, params: Any, batch: Any) -> Any:
            return dpjax.per_example_grads(loss, engine=engine)(params, batch)

        return Variant(gradients, dpjax.privatize(mechanism, batch_size, jax.random.key(1)))

    return variant


def optax_contrib(batch_size: int, sigma: float) -> Variant:
    """`optax.contrib.differentially_private_aggregate` on gradients through vmap."""
    del batch_size  # it divides by the realised size

    def gradients(loss: Any, params: Any, batch: Any) -> Any:
        return jax.vmap(jax.grad(loss), (None, 0))(params, batch)

    aggregate = optax.contrib.differentially_private_aggregate(CLIP, sigma, jax.random.key(1))
    return Variant(gradients, aggregate)


def jax_privacy(batch_size: int, sigma: float) -> Variant:
    """`jax_privacy.clipped_grad` and its Gaussian privatizer."""
    try:
        from jax_privacy import clipped_grad, noise_addition  # noqa: PLC0415
    except ImportError as error:
        raise LeftOut(str(error)) from error

    def gradients(loss: Any, params: Any, batch: Any) -> Any:
        return clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=batch_size, keep_batch_dim=False)(
            params, batch
        )

    noise = noise_addition.gaussian_privatizer(
        stddev=sigma * CLIP / batch_size, prng_key=jax.random.key(1)
    )
    return Variant(gradients, noise)


JAX_VARIANTS: dict[str, Callable[[int, float], Variant]] = {
    "jax": non_private,
    "vmap": of_engine("vmap"),
    "ghost": of_engine("ghost"),
    "ghost_two_pass": of_engine("ghost_two_pass"),
    "optax": optax_contrib,
    "jax_privacy": jax_privacy,
}
