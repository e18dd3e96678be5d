"""Flax NNX: per-example gradients of a model, and an optimizer that takes them."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from dpjax import gradients
from dpjax.batch_sums import ClippedSum
from dpjax.gradients import PerExampleGrads
from dpjax.gradients.per_example import check_arguments, check_signature
from dpjax.sampling import Drawn, Packed

__all__ = ["Optimizer", "per_example_grads"]

# Replaces variables by their arrays; Flax 0.12.2 calls it `pure`.
_as_pure = nnx.as_pure if hasattr(nnx, "as_pure") else nnx.pure


def per_example_grads(
    loss_fn: Callable[..., chex.ArrayTree],
    engine: str = "auto",
    chunk: int | None = None,
    has_aux: bool = False,
    wrt: nnx.filterlib.Filter = nnx.Param,
) -> Callable[..., PerExampleGrads]:
    """Turns the loss of one example into per-example gradients of an NNX model.

    Args:
        loss_fn: ``loss_fn(model, example) -> scalar`` for ONE example, as for `nnx.grad`. Its
            changes to the model (counters, sown values) are discarded. It takes no key, unlike the
            loss of `dpjax.per_example_grads`: random numbers come from a stream of the model, such
            as ``model.rngs.noise()`` for ``model.rngs = nnx.Rngs(noise=0)``.
        engine: as for `dpjax.per_example_grads`.
        chunk: as for `dpjax.per_example_grads`.
        has_aux: whether the loss returns ``(loss, aux)``.
        wrt: the variables to differentiate, the same as the optimizer's; all others stay fixed.

    Returns:
        ``grads_of(model, data, drawn, key=None)``, or ``grads_of(model, batch, mask=None,
        key=None)``, the same functions that `dpjax.per_example_grads` returns, with the model
        instead of parameters. With `key`, the model's random streams (dropout) are reseeded for
        every example, from the key and the example's row number in the data set.

    Raises:
        TypeError: if `loss_fn` is not callable or takes other arguments, or `chunk` is not an
            integer.
        ValueError: if `engine` is unknown or `chunk` is below 1. `grads_of` raises it if the model
            has batch statistics, or has random streams and no key is given.

    Example:
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> loss_fn = lambda model, x: jnp.sum(model(x))
        >>> grads = per_example_grads(loss_fn)(model, jnp.array([[2.0, 2.0]]))
        >>> round(float(grads.norms[0]), 4)
        3.0
    """

    check_arguments(loss_fn, engine, chunk)
    check_signature(loss_fn, "model", "example")

    def grads_of(
        model: nnx.Module,
        batch: chex.ArrayTree,
        drawn: Drawn | Packed | None = None,
        key: chex.PRNGKey | None = None,
        *,
        mask: chex.Array | None = None,
    ) -> PerExampleGrads:
        gradients.refuse_batch_stats(model)
        parts: Any = nnx.split(model, wrt, nnx.RngState, ...)
        graphdef, own, streams, rest = parts
        if key is None and jax.tree.leaves(streams):
            raise ValueError(
                "key = None with a model that holds random streams (nnx.Rngs): expected a key, "
                "from which every example gets its own; or drop the streams from the model"
            )

        def loss(
            params: chex.ArrayTree, example: chex.ArrayTree, *keys: jax.Array
        ) -> chex.ArrayTree:
            seeded = _reseeded(streams, keys[0]) if keys else streams
            return loss_fn(nnx.merge(graphdef, params, seeded, rest), example)

        made = gradients.per_example_grads(loss, engine, chunk, has_aux)
        return made(_as_pure(own), batch, drawn, key, mask=mask)

    return grads_of


class NoiseKey(nnx.OptArray):
    """The variable that holds the noise key in an optimizer's state; its value is not printed."""

    def __nnx_repr__(self) -> Iterator[nnx.reprlib.Object | nnx.reprlib.Attr]:
        """Yields what `repr` shows, here and inside modules and states."""
        yield nnx.reprlib.Object(type=type(self).__name__, same_line=True)
        yield nnx.reprlib.Attr("value", "<private>", use_raw_value=True)


class Optimizer(nnx.Optimizer[Any]):
    """An `nnx.Optimizer` whose `update` also takes per-example gradients and clipped sums.

    Anyone who has the noise key can subtract the noise, so it is not printed with the rest.

    Args:
        model: the model.
        tx: an optax chain that begins with `dpjax.privatize`.
        wrt: the variables to update, such as `nnx.Param`.
        **options: passed to `nnx.Optimizer`.

    Example:
        >>> import dpjax
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> mechanism = dpjax.methods.dp_sgd(noise_multiplier=1.0)
        >>> private = dpjax.privatize(mechanism, 1, jax.random.key(0))
        >>> optimizer = Optimizer(model, optax.chain(private, optax.sgd(0.1)), wrt=nnx.Param)
        >>> @nnx.jit
        ... def step(model, optimizer, batch):
        ...     grads = per_example_grads(lambda model, x: jnp.sum(model(x)))(model, batch)
        ...     optimizer.update(model, grads)
        >>> step(model, optimizer, jnp.ones((1, 2)))
        >>> int(optimizer.step[...])
        1
    """

    def __init__(
        self,
        model: nnx.Module,
        tx: optax.GradientTransformation,
        *,
        wrt: nnx.filterlib.Filter,
        **options: Any,
    ) -> None:
        """Initialises the optimizer's state."""
        super().__init__(model, tx, wrt=wrt, **options)
        self.opt_state = nnx.data(
            jax.tree.map(
                _unprinted, self.opt_state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
            )
        )

    def update(
        self,
        model: nnx.Module,
        grads: PerExampleGrads | ClippedSum | nnx.State[Any, Any],
        /,
        **kwargs: Any,
    ) -> optax.Updates:
        """Updates the model and the optimizer's state; the arguments are those of `nnx.Optimizer`.

        Args:
            model: the model, which is changed in place.
            grads: the output of `dpjax.nnx.per_example_grads` or `dpjax.clipped_sum`; anything else
                is passed to `nnx.Optimizer`.
            **kwargs: passed to the transformation.

        Returns:
            The updates that were applied to the parameters.

        Raises:
            TypeError: if the arguments are swapped.
        """
        if isinstance(model, PerExampleGrads | ClippedSum):
            raise TypeError(
                f"model = {type(model).__name__}: expected update(model, grads), the model first"
            )
        if not isinstance(grads, PerExampleGrads | ClippedSum):
            return super().update(model, grads, **kwargs)
        params = _as_pure(nnx.state(model, self.wrt))
        before = _as_pure(self.opt_state)
        updates, after = self.tx.update(grads, before, params, **kwargs)
        nnx.update(model, optax.apply_updates(params, updates))
        nnx.update(self.opt_state, nnx.state(after))
        self.step[...] += 1
        return cast(optax.Updates, updates)


def _unprinted(variable: nnx.Variable[jax.Array]) -> nnx.Variable[jax.Array]:
    is_key = jnp.issubdtype(variable.dtype, jax.dtypes.prng_key)
    return NoiseKey(variable[...]) if is_key else variable


def _reseeded(streams: nnx.State[Any, Any], key: jax.Array) -> nnx.State[Any, Any]:
    """Returns reseeded random streams: stream number i gets the key folded with i."""
    number = iter(range(len(jax.tree.leaves(streams))))

    def renewed(value: jax.Array) -> jax.Array:
        own = jax.random.fold_in(key, next(number))
        if not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jnp.zeros_like(value)  # the number of keys drawn from the stream
        return (
            own if jnp.issubdtype(own.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(own)
        )

    return jax.tree.map(renewed, streams)
