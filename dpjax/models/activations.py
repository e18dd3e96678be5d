"""Activations by name, including the tempered sigmoids of Papernot et al."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from dpjax import _checks

__all__ = ["ACTIVATIONS", "Activation", "activation", "tempered_sigmoid"]

Activation: TypeAlias = str | Mapping[str, object]
"""The name of an activation, or a table with its name and parameters."""


@dataclass(frozen=True)
class tempered_sigmoid:
    """A bounded activation, ``s sigmoid(T x) - o``, which also bounds the gradients' norms.

    The defaults are the case that Papernot et al. recommend, ``2 sigmoid(2 x) - 1 = tanh(x)``.

    Args:
        scale: s, > 0.
        inverse_temperature: T, > 0.
        offset: o.

    Example:
        >>> float(tempered_sigmoid(scale=1.58, inverse_temperature=3.0, offset=0.71)(0.0))
        0.08...

    Reference: Papernot et al., Tempered Sigmoid Activations for Deep Learning with Differential
    Privacy, 2020, https://arxiv.org/abs/2007.14191.
    """

    scale: float = 2.0
    inverse_temperature: float = 2.0
    offset: float = 1.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        _checks.positive("scale", self.scale)
        _checks.positive("inverse_temperature", self.inverse_temperature)
        _checks.finite("offset", self.offset)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the activation."""
        return self.scale * jax.nn.sigmoid(self.inverse_temperature * x) - self.offset


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "tempered_sigmoid": tempered_sigmoid,
}


def activation(spec: Activation) -> Callable[[jax.Array], jax.Array]:
    """Returns an activation from its name, or from a table with its name and parameters.

    Args:
        spec: "relu", "tanh", "mish", "tempered_sigmoid", or a table such as
            ``{"name": "tempered_sigmoid", "scale": 1.58, "inverse_temperature": 3.0}``.

    Raises:
        ValueError: if there is no activation of this name, or it has no such parameter.

    Example:
        >>> activation({"name": "tempered_sigmoid", "offset": 0.5})
        tempered_sigmoid(scale=2.0, inverse_temperature=2.0, offset=0.5)
    """
    numbers = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    function = ACTIVATIONS[_checks.choice("activation", numbers.pop("name", None), ACTIVATIONS)]
    known = inspect.signature(function).parameters if function is tempered_sigmoid else {}
    for option in numbers:
        if option not in known:
            raise ValueError(f"activation.{option}: {_checks.nearest(str(option), known)}")
    return function(**numbers) if function is tempered_sigmoid else function
