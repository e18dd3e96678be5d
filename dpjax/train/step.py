"""The training program as pure functions: (state, data) -> state, many steps in one scan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from dpjax import _checks, noise
from dpjax._states import find_state, repr_without_keys
from dpjax.batch_sums import ClippedSum
from dpjax.data import Dataset, Pixels
from dpjax.data.augment import augmented
from dpjax.gradients import PerExampleGrads, per_example_grads
from dpjax.mechanism import Mechanism, Release
from dpjax.models import Network, Parameters, split
from dpjax.privatize import PrivatizeState, Released
from dpjax.sampling import Drawn, Packed
from dpjax.train.config import Experiment
from dpjax.train.network import build_network, with_hash, with_weights
from dpjax.train.plan import Plan, build_optimizer, resolve

__all__ = [
    "VARIABLE",
    "Examples",
    "Program",
    "Scores",
    "TrainState",
    "build_program",
    "released_of",
]

VARIABLE = ("optimizer.learning_rate", "method.threshold")
"""Numbers that may differ between members of one compiled program: none that is accounted."""

_EVALUATED_AT_ONCE = 500


class Examples(NamedTuple):
    """Examples as the loop takes them, with a leading axis.

    Attributes:
        x: inputs as stored: pixels as bytes, tokens, or features.
        y: class labels.
        row: the example's number, which is folded into its augmentation key, so that augmentation
            does not depend on the device or the part of the batch that the example is in.
    """

    x: chex.Array
    y: chex.Array
    row: chex.Array


class Scores(NamedTuple):
    """Accuracy and loss on held-out examples."""

    accuracy: jax.Array
    loss: jax.Array


class TrainState(NamedTuple):
    """Everything a run needs to resume; private, because it holds keys.

    Attributes:
        step: t, the number of steps released.
        params: the trainable parameters.
        frozen: the others.
        ema: the moving average of the parameters; () without one.
        opt_state: the state of the optax chain: noise key, thresholds, optimizer.
        key: the root of the run's other streams.
        vary: this member's values of the `VARIABLE` numbers, by path.
    """

    step: jax.Array
    params: chex.ArrayTree
    frozen: chex.ArrayTree
    ema: chex.ArrayTree
    opt_state: optax.OptState
    key: jax.Array
    vary: Mapping[str, jax.Array]

    def __repr__(self) -> str:
        """Shows everything except the keys."""
        return repr_without_keys(self)


@dataclass(frozen=True)
class Program:
    """A training program: pure functions of states and data.

    Args:
        plan: method, sampling, steps and optimizer.
        network: the network.
        pixels: how stored pixels become numbers; None if the inputs are not images.
        varied: names in `VARIABLE` whose values come from the state instead of the plan, so that
            one program runs states whose plans differ only in them.
        axis: inside `jax.shard_map`, the mesh axis over which the data are split; otherwise None.
        sharding: in a plain `jax.jit` over a mesh, how the data are split; otherwise None.
    """

    plan: Plan
    network: Network
    pixels: Pixels | None = None
    varied: tuple[str, ...] = ()
    axis: str | None = None
    sharding: NamedSharding | None = None

    def __post_init__(self) -> None:
        """Checks the names in `varied`."""
        for path in self.varied:
            if path not in VARIABLE:
                raise ValueError(f"vary {path}: {_checks.nearest(path, VARIABLE)}")
        if "method.threshold" in self.varied:
            _fixed_threshold(self.plan.method)
        if "optimizer.learning_rate" in self.varied:
            _checks.positive(
                "optimizer.learning_rate", self.plan.experiment.optimizer.learning_rate
            )

    def init(self, key: jax.Array, weights: Mapping[str, chex.Array] | None = None) -> TrainState:
        """Returns the state before the first step.

        Args:
            key: the run's key; see `dpjax.train.member_key`.
            weights: initial values of parameters by path; the others are initialised at random.
        """
        params = self.network.init(noise.stream(key, "init"))
        own = split(with_weights(params, weights or {}), self.plan.experiment.model.trainable)
        averaged = self.plan.experiment.train.ema is not None
        vary = {path: jnp.float32(self.own_value(path)) for path in self.varied}
        return TrainState(
            jnp.zeros((), jnp.int32),
            own.trainable,
            own.frozen,
            jax.tree.map(jnp.copy, own.trainable) if averaged else (),
            self._transformation(vary, noise.stream(key, "noise")).init(own.trainable),
            key,
            vary,
        )

    def step(self, state: TrainState, data: Examples) -> tuple[TrainState, Released]:
        """Draws a batch and takes one private step; jit-able, with fixed shapes.

        Args:
            state: the current state.
            data: all private examples.

        Returns:
            The new state, and the public numbers of the step.
        """
        grads = self.gradients_of(state)(state.params, data, self.draw(state))
        return self.finish(state, grads)

    def advance(
        self, state: TrainState, data: Examples, steps: chex.Numeric, most: int
    ) -> tuple[TrainState, Released]:
        """Takes `steps` steps in one loop; jit-able, and compiled once for any number of them.

        Args:
            state: the state to start from.
            data: all private examples.
            steps: the number of steps, at most `most`; may be traced.
            most: the number of rows of the released numbers.

        Returns:
            The new state, and the released numbers of each step; rows beyond `steps` are NaN.
        """
        unknown = jax.tree.map(
            lambda leaf: jnp.full((most, *leaf.shape), jnp.nan, leaf.dtype), released_of(state)
        )

        def body(i: jax.Array, carried: tuple[TrainState, Released]) -> tuple[TrainState, Released]:
            state, found = carried
            state, released = self.step(state, data)
            return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), found, released)

        return jax.lax.fori_loop(0, steps, body, (state, unknown))

    def draw(self, state: TrainState) -> Drawn:
        """Returns this step's batch; on a mesh, of this device's rows.

        Args:
            state: the current state.
        """
        part = None
        if self.axis is not None:
            rows = -(-self.plan.dataset_size // jax.lax.axis_size(self.axis))
            part = (jax.lax.axis_index(self.axis) * rows, rows)
        return self.plan.sampling.draw(state.key, state.step, part, self.sharding)

    def gradients_of(self, state: TrainState) -> Callable[..., PerExampleGrads]:
        """Returns the function that `dpjax.per_example_grads` makes of this step's loss.

        Args:
            state: the current state.
        """
        config = self.plan.experiment.train
        key = noise.fold(noise.stream(state.key, "augment"), state.step)
        loss = self.loss(state.frozen, key)
        return per_example_grads(loss, config.engine, config.chunk, sharding=self.sharding)

    def loss(
        self, frozen: chex.ArrayTree, key: jax.Array
    ) -> Callable[[chex.ArrayTree, Examples], jax.Array]:
        """Returns this step's loss of ONE example, ``loss(params, example)``.

        Args:
            frozen: the parameters that are not trained.
            key: the step's key for augmentation.
        """

        config = self.plan.experiment.train

        def plain(params: chex.ArrayTree, x: jax.Array, y: jax.Array) -> jax.Array:
            logits = self._logits(Parameters(params, frozen).merged(), x)
            return _loss(logits, y)

        if not config.augment:
            return lambda params, example: plain(params, self._scaled(example.x), example.y)
        mean = augmented(plain, config.augment, config.multiplicity)

        def loss(params: chex.ArrayTree, example: Examples) -> jax.Array:
            own = jax.random.fold_in(key, example.row)
            return mean(params, self._scaled(example.x), example.y, own)

        return loss

    def clipped_sum(self, state: TrainState, rows: Examples, packed: Packed) -> ClippedSum:
        """Returns the clipped sum over a part of a batch that the host feeds; private.

        Args:
            state: the current state.
            rows: the examples of the part.
            packed: which rows of the data set they are, and how many are real.
        """
        grads = self.gradients_of(state)(state.params, rows, packed)
        return self._method(state.vary).clipped_sum(grads, state.opt_state)

    def finish(
        self, state: TrainState, grads: PerExampleGrads | ClippedSum
    ) -> tuple[TrainState, Released]:
        """Completes a step, from a batch's gradients or from the clipped sum over its parts.

        Args:
            state: the current state.
            grads: the gradients of the batch, or the clipped sum over it.

        Returns:
            The new state, and the public numbers of the step.
        """
        tx = self._transformation(state.vary, state.key)  # the noise key used is in the state
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new = state._replace(
            step=state.step + 1,
            params=params,
            ema=self._averaged(state, params),
            opt_state=opt_state,
        )
        return new, released_of(new)

    def evaluate(self, state: TrainState, examples: Examples) -> Scores:
        """Returns accuracy and loss on held-out examples, of the averaged parameters if kept.

        Args:
            state: the current state.
            examples: the held-out examples.
        """
        right, losses = self.outcomes(state, examples)
        return Scores(jnp.mean(right.astype(jnp.float32)), jnp.mean(losses))

    def outcomes(self, state: TrainState, examples: Examples) -> tuple[jax.Array, jax.Array]:
        """Returns whether each held-out example is classified correctly, and its loss.

        With several labels per example, the first is the fraction of correct ones. Nothing is
        augmented.

        Args:
            state: the current state.
            examples: the held-out examples.
        """
        params = self.released_params(state)

        def one(example: Examples) -> tuple[jax.Array, jax.Array]:
            logits = self._logits(params, self._scaled(example.x))
            return _right(logits, example.y), _loss(logits, example.y)

        size = min(_EVALUATED_AT_ONCE, examples.y.shape[0])
        return jax.lax.map(one, examples, batch_size=size)

    def released_params(self, state: TrainState) -> chex.ArrayTree:
        """Returns all parameters, as they are evaluated and published.

        Args:
            state: the current state.
        """
        averaged = self.plan.experiment.train.ema is not None
        return Parameters(state.ema if averaged else state.params, state.frozen).merged()

    def _logits(self, params: chex.ArrayTree, x: jax.Array) -> jax.Array:
        precision = self.plan.experiment.train.precision
        if precision is None:
            return self.network.apply(params, x)

        def halved(leaf: jax.Array) -> jax.Array:
            floating = jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(precision) if floating else leaf

        params, x = jax.tree.map(halved, (params, x))
        return self.network.apply(params, x).astype(jnp.float32)

    def _scaled(self, x: jax.Array) -> jax.Array:
        if self.pixels is None:
            return x
        mean, std = (jnp.asarray(v, jnp.float32) for v in (self.pixels.mean, self.pixels.std))
        return (x.astype(jnp.float32) / self.pixels.full - mean) / std

    def _averaged(self, state: TrainState, params: chex.ArrayTree) -> chex.ArrayTree:
        """Updates the moving average, faster at first, so that the start is soon forgotten."""
        decay = self.plan.experiment.train.ema
        if decay is None:
            return ()
        t = state.step.astype(jnp.float32)
        rate = 1 - jnp.minimum(decay, (1 + t) / (10 + t))
        return optax.incremental_update(params, state.ema, rate)

    def _transformation(
        self, vary: Mapping[str, jax.Array], key: jax.Array
    ) -> optax.GradientTransformationExtraArgs:
        plan = self.plan
        private = self._method(vary).transformation(plan.sampling, key, self.axis)
        rate = vary.get("optimizer.learning_rate")
        # For `asked` steps: the budget may stop a schedule before its end.
        optimizer = build_optimizer(plan.experiment.optimizer, plan.asked, rate)
        return optax.chain(private, optimizer)

    def _method(self, vary: Mapping[str, jax.Array]) -> Release:
        threshold, method = vary.get("method.threshold"), self.plan.method
        if threshold is None or not isinstance(method, Mechanism):
            return method
        return method.replace(threshold=lambda step: threshold)

    def own_value(self, path: str) -> float:
        """Returns the plan's value of a number in `VARIABLE`.

        Args:
            path: a name in `VARIABLE`.
        """
        if path == "method.threshold":
            return _fixed_threshold(self.plan.method)
        rate = self.plan.experiment.optimizer.learning_rate
        return _checks.positive("optimizer.learning_rate", rate)


def _loss(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the cross entropy of one label, or its mean over several labels."""
    if y.ndim == 0:
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, y.astype(logits.dtype)))


def _right(logits: jax.Array, y: jax.Array) -> jax.Array:
    if y.ndim == 0:
        return jnp.argmax(logits) == y
    return jnp.mean((logits > 0) == (y > 0))


def _fixed_threshold(method: Release) -> float:
    threshold = method.threshold if isinstance(method, Mechanism) else None
    if not isinstance(threshold, float):
        raise ValueError(
            f"vary method.threshold with {method.name}: expected a method with one fixed threshold"
        )
    return threshold


def released_of(state: TrainState) -> Released:
    """Returns the public numbers of the last step."""
    return find_state(state.opt_state, PrivatizeState).released


def build_program(experiment: Experiment, dataset: Dataset, varied: Sequence[str] = ()) -> Program:
    """Returns the program for an experiment on its data set.

    Args:
        experiment: the experiment; need not be resolved.
        dataset: the data set; its training examples are the private ones.
        varied: see `Program`.

    Raises:
        ValueError: if the experiment is for another data set, or cannot run; names the field.

    Example:
        >>> from dpjax.train import load_dataset
        >>> experiment = Experiment().set("method.noise_multiplier", 1.0)
        >>> program = build_program(experiment, load_dataset(experiment))
        >>> program.plan.steps, program.network.name
        (57, 'mlp')
    """
    if dataset.name != experiment.data.name:
        raise ValueError(f"data.name = {experiment.data.name!r}: expected {dataset.name!r}")
    pixels, augment = dataset.pixels, experiment.train.augment
    if pixels is None and augment:
        raise ValueError(
            f"train.augment = {list(augment)}: expected none, since {dataset.name} holds no images"
        )
    if pixels is not None and experiment.data.scale == "unit":
        channels = len(pixels.mean)
        pixels = Pixels(pixels.full, (0.0,) * channels, (1.0,) * channels)
    network = build_network(experiment, dataset)
    plan = resolve(with_hash(experiment), dataset.size)
    return Program(plan, network, pixels, tuple(varied))
