"""A workload in JAX: parameters, the loss of ONE example, and random examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import encoder
from benchmarks.workloads import Workload
from dpjax import models

__all__ = ["Problem", "problem"]

Loss = Callable[[Any, Any], jax.Array]


@dataclass(frozen=True)
class Problem:
    """A workload's network and data, ready for a step.

    Attributes:
        params: the trained parameters.
        frozen: the others; an argument of the step, because constants would be compiled in.
        loss_of: ``loss_of(frozen)(params, example)``, the loss of one example.
        examples: ``(x, y)``, each with a leading axis.
    """

    params: Any
    frozen: Any
    loss_of: Callable[[Any], Loss]
    examples: tuple[jax.Array, jax.Array]

    @property
    def param_count(self) -> int:
        """The number of trained parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    @property
    def frozen_count(self) -> int:
        """The number of frozen parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.frozen))


def problem(workload: Workload) -> Problem:
    """Builds a workload's network and draws its batch."""
    key, data_key = jax.random.split(jax.random.key(0))
    if workload.encoder is None:
        network = models.build(
            workload.network,
            workload.shape,
            workload.classes,
            workload.vocabulary,
            **_options(workload),
        )
        params: Any = jax.jit(network.init)(key)
        frozen: Any = {}

        def logits(params: Any, frozen: Any, x: jax.Array) -> jax.Array:
            del frozen
            return network.apply(params, x)

    else:
        size, vocabulary = workload.encoder, workload.vocabulary or 0
        params, frozen = encoder.init(key, size, workload.shape[0], vocabulary, workload.classes)

        def logits(params: Any, frozen: Any, x: jax.Array) -> jax.Array:
            return encoder.logits(params, frozen, x, size.heads)

    def loss_of(frozen: Any) -> Loss:
        def loss(params: Any, example: Any) -> jax.Array:
            x, y = example
            found = logits(params, frozen, x)
            return optax.softmax_cross_entropy_with_integer_labels(found, y)

        return loss

    return Problem(params, frozen, loss_of, _examples(data_key, workload))


def _options(workload: Workload) -> dict[str, Any]:
    # The stem for small images keeps all 32x32 positions for the blocks.
    return {"stem": "cifar"} if workload.network == "resnet18" else {}


def _examples(key: jax.Array, workload: Workload) -> tuple[jax.Array, jax.Array]:
    x_key, y_key = jax.random.split(key)
    shape = (workload.batch, *workload.shape)
    if workload.vocabulary is None:
        x = jax.random.normal(x_key, shape)
    else:
        x = jax.random.randint(x_key, shape, 1, workload.vocabulary)
    return x, jax.random.randint(y_key, (workload.batch,), 0, workload.classes, jnp.int32)
