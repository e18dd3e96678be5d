"""The whole training loop as one call."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from dpjax import _checks, noise
from dpjax._states import find_state
from dpjax.devices import as_automatic, as_explicit, automatic_axes, explicit_mesh, leading_axes
from dpjax.gradients import merged, per_example_grads, trainable
from dpjax.gradients.rows import leading_size
from dpjax.mechanism import Mechanism
from dpjax.privatize import PrivatizeState, Released, privatize
from dpjax.sampling import Sampling

if TYPE_CHECKING:
    from dpjax.accounting import Bound, Ledger

__all__ = ["FitState", "Fitted", "fit"]


class Ran(NamedTuple):
    """A number of released steps of one mechanism under one sampling; the ledger's entries."""

    mechanism: Mechanism
    sampling: Sampling
    steps: int


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("params", "opt_state", "key"),
    meta_fields=("ran",),
)
@dataclass(frozen=True)
class FitState:
    """The state from which `fit` can resume. It is private, because it holds the run's key.

    Attributes:
        params: the parameters.
        opt_state: the state of `privatize` and of the optimizer.
        key: the run's key.
        ran: the steps released so far.
    """

    params: chex.ArrayTree
    opt_state: optax.OptState
    key: jax.Array
    ran: tuple[Ran, ...]

    def __repr__(self) -> str:
        """Shows everything except the key."""
        return f"FitState(step={self.step}, params={self.params!r})"

    @property
    def step(self) -> int:
        """The number of steps released so far."""
        return sum(each.steps for each in self.ran)


@dataclass(frozen=True)
class Fitted:
    """The result of `fit`, also passed to its callback.

    Attributes:
        params: the parameters.
        state: the state from which another call can resume; private.
        released: C_t, the bound, sigma_t and sigma_T of each step of this call, as NumPy arrays
            with a leading axis; safe to publish.
    """

    params: chex.ArrayTree
    state: FitState
    released: Released

    @cached_property
    def ledger(self) -> "Ledger":
        """Everything released about the data, including steps before a resume."""
        from dpjax.accounting import Ledger  # noqa: PLC0415 (imported on first use: it takes 1 s)

        ledger = Ledger("data")
        for each in self.state.ran:
            ledger = ledger.add_steps(each.mechanism, each.sampling, each.steps, run="fit")
        return ledger

    def epsilon(self, delta: float, accountant: str = "pld") -> "Bound":
        """Returns the epsilon of all steps so far.

        Args:
            delta: the target delta.
            accountant: as for `dpjax.epsilon`.
        """
        return self.ledger.epsilon(delta, accountant)


def fit(
    loss_fn: Callable[..., jax.Array],
    params: chex.ArrayTree,
    data: chex.ArrayTree,
    mechanism: Mechanism,
    sampling: Sampling,
    optimizer: optax.GradientTransformation,
    steps: int,
    key: chex.PRNGKey,
    engine: str = "auto",
    chunk: int | None = None,
    state: FitState | None = None,
    callback: Callable[[Fitted], None] | None = None,
    every: int | None = None,
) -> Fitted:
    """Trains with differential privacy: draws batches, takes private steps, keeps the ledger.

    It runs a loop of `sampling.draw`, `dpjax.per_example_grads`, `dpjax.privatize` and the
    optimizer, compiled as one program between callbacks.

    Args:
        loss_fn: the loss of ONE example, ``loss_fn(params, example)``, or ``loss_fn(params,
            example, key)`` for one that draws random numbers, such as dropout.
        params: the initial parameters; if `state` is given, only their structure is used.
        data: all private examples, a pytree whose leading axis has length `sampling.dataset_size`.
            Sharded arrays and parameters stay sharded; see docs/scale.md. The data may have extra
            rows at the end, to make their number a multiple of the number of devices; these are
            never drawn.
        mechanism: the calibrated mechanism, which is run and accounted.
        sampling: the sampling that draws the batches.
        optimizer: the transformation that follows `privatize`, such as ``optax.adam(1e-3)``.
        steps: the number of steps to take in this call.
        key: the run's key, from which noise, batches and the loss get separate streams.
        engine: as for `dpjax.per_example_grads`.
        chunk: as for `dpjax.per_example_grads`.
        state: ``fitted.state`` of an earlier call, to continue from there with the same key.
        callback: called with a `Fitted` every `every` steps and at the end, for evaluation on
            held-out data, progress and checkpoints.
        every: the number of steps between two callbacks; None calls it only at the end.

    Returns:
        A `Fitted` with the parameters, a resumable state, the public numbers of every step, the
        ledger and epsilon.

    Raises:
        TypeError: if an argument has another type, or `fit` is called inside of `jax.jit`.
        ValueError: if `dpjax.privatize` raises, `data` has no arrays, `optimizer` contains a
            `dpjax.privatize`, or `state` was made with another key, other parameters, or another
            mechanism or optimizer whose state differs.

    Privacy:
        The event is `steps` steps of the mechanism under the sampling; `fitted.epsilon` gives its
        cost. Anything a callback computes from the private data is not covered. Resume from a state
        only once: two runs from one state draw the same noise, so their difference reveals the
        data. The same holds for two runs with one key.

    Example:
        >>> import dpjax
        >>> data = jax.random.normal(jax.random.key(1), (64, 2)) + 1.0
        >>> sampling = dpjax.sampling.Poisson(batch_size=16, dataset_size=64)
        >>> mechanism = dpjax.methods.dp_sgd(noise_multiplier=1.0)
        >>> loss = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)
        >>> fitted = fit(loss, jnp.zeros(2), data, mechanism, sampling, optax.sgd(0.5), 20,
        ...              jax.random.key(0))
        >>> fitted.params.shape, fitted.released.sigma.shape, round(fitted.epsilon(1e-3), 1)
        ((2,), (20,), 5.4)
    """
    steps = _checks.integer("steps", steps, at_least=1)
    every = steps if every is None else _checks.integer("every", every, at_least=1)
    if not isinstance(sampling, Sampling):
        raise TypeError(f"sampling = {sampling!r}: expected one of dpjax.sampling")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"optimizer = {optimizer!r}: expected an optax.GradientTransformation, such as "
            "optax.adam(1e-3)"
        )
    leading_size("data", data)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((params, data, key))):
        raise TypeError(
            "fit was called inside of a JAX transformation: expected a call outside of jax.jit, "
            "since it compiles its own loop and returns NumPy arrays"
        )
    root = noise.checked_key(key)
    tx = optax.chain(privatize(mechanism, sampling, root), optimizer)
    sharding = _split_rows(data)
    grads_of = per_example_grads(loss_fn, engine, chunk, sharding=sharding)
    random = _takes_a_key(loss_fn)

    def step(
        carry: tuple[chex.ArrayTree, optax.OptState], data: chex.ArrayTree
    ) -> tuple[tuple[chex.ArrayTree, optax.OptState], Released]:
        own, opt_state = carry
        t = find_state(opt_state, PrivatizeState).step
        drawn = sampling.draw(root, t, sharding=sharding)
        own_key = noise.fold(noise.stream(root, "loss"), t) if random else None
        grads = grads_of(merged(own, params), data, drawn, own_key)
        updates, opt_state = tx.update(grads, opt_state, own)
        released = find_state(opt_state, PrivatizeState).released
        return (optax.apply_updates(own, updates), opt_state), released

    @partial(jax.jit, static_argnames="length")
    def advance(
        carry: tuple[chex.ArrayTree, optax.OptState], data: chex.ArrayTree, length: int
    ) -> tuple[tuple[chex.ArrayTree, optax.OptState], Released]:
        mesh = explicit_mesh(carry, data)
        begun, rows = as_automatic((carry, data), mesh)
        with automatic_axes(mesh):
            done, released = jax.lax.scan(lambda carry, _: step(carry, rows), begun, length=length)
        return as_explicit(done, mesh, carry), as_explicit(released, mesh)

    own = trainable(params)
    _check_optimizer(optimizer, own)
    if state is None:
        carry = (own, tx.init(own))
    else:
        _check_state(state, root, own, tx)
        carry = (trainable(state.params), state.opt_state)
    ran = () if state is None else state.ran
    seen: list[Released] = []
    for done in range(0, steps, every):
        length = min(every, steps - done)
        carry, released = advance(carry, data, length)
        seen.append(jax.tree.map(np.asarray, released))
        fitted = _fitted(
            merged(carry[0], params),
            carry[1],
            root,
            (*ran, Ran(mechanism, sampling, done + length)),
            seen,
        )
        if callback is not None:
            callback(fitted)
    return fitted


def _split_rows(data: chex.ArrayTree) -> NamedSharding | None:
    """Returns how the rows of the data are split over a mesh; None if they are not split."""
    for leaf in jax.tree.leaves(data):
        where = getattr(leaf, "sharding", None)
        if isinstance(where, NamedSharding) and leading_axes(where):
            return where
    return None


def _fitted(
    params: chex.ArrayTree,
    opt_state: optax.OptState,
    key: jax.Array,
    ran: tuple[Ran, ...],
    seen: list[Released],
) -> Fitted:
    released = jax.tree.map(lambda *parts: np.concatenate(parts), *seen)
    return Fitted(params, FitState(params, opt_state, key, ran), released)


def _takes_a_key(loss_fn: Callable[..., object]) -> bool:
    """Returns whether the loss has a required third argument."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [
        each
        for each in inspect.signature(loss_fn).parameters.values()
        if each.kind in kinds and each.default is each.empty
    ]
    return len(needed) == 3


def _check_optimizer(optimizer: optax.GradientTransformation, own: chex.ArrayTree) -> None:
    states = jax.tree.leaves(
        jax.eval_shape(optimizer.init, own), is_leaf=lambda node: isinstance(node, PrivatizeState)
    )
    if any(isinstance(state, PrivatizeState) for state in states):
        raise ValueError(
            "optimizer contains dpjax.privatize: expected the transformation that follows it, such "
            "as optax.adam(1e-3), since fit puts the mechanism's own in front"
        )


def _check_state(
    state: FitState,
    key: jax.Array,
    own: chex.ArrayTree,
    tx: optax.GradientTransformation,
) -> None:
    """Raises unless a run with this key, parameters and transformation can resume from `state`."""
    if not isinstance(state, FitState):
        raise TypeError(f"state = {type(state).__name__}: expected fitted.state")
    same = jnp.all(jax.random.key_data(state.key) == jax.random.key_data(key))
    if not bool(same):
        raise ValueError("key: expected the key that the state was made with")
    found: object = jax.tree.structure(trainable(state.params))
    expected: object = jax.tree.structure(own)
    if found != expected:
        raise ValueError(f"state.params is the pytree {found}: expected that of params, {expected}")
    shapes = jax.eval_shape(tx.init, trainable(state.params))
    if _layout(state.opt_state) != _layout(shapes):
        raise ValueError(
            "state.opt_state was made by another mechanism or optimizer: expected those it was "
            "made with, in which only numbers may differ"
        )


def _layout(tree: chex.ArrayTree) -> tuple[object, list[tuple[tuple[int, ...], jnp.dtype]]]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
