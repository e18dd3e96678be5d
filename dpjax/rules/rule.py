"""What a rule is, and the one division that all of them share."""

from typing import ClassVar

import chex
import jax
import jax.numpy as jnp

from dpjax._record import Record

__all__ = ["Rule", "as_float", "ratio"]


class Rule(Record):
    """A scaling rule: ``contribution = weight(n, c) * g`` with ``|contribution| <= bound(c)``.

    Here g is one example's gradient, n its L2 norm and c the threshold in force. To write a rule,
    subclass this as a frozen dataclass whose fields are public numbers, and define `weight` and
    `bound`. `dpjax.testing.check_rule` tests a subclass against this contract.

    Privacy:
        Bound: `bound`, for every n >= 0. Relation: add or remove one example, which changes the sum
        of contributions by at most the bound. Event: none of its own; `dpjax.Mechanism` adds noise
        in proportion to the bound and emits one Gaussian per step. Not protected: the rule's own
        fields, which are public.

    Example:
        >>> from dataclasses import dataclass
        >>> import dpjax
        >>> @dataclass(frozen=True)
        ... class halved(Rule):
        ...     def weight(self, norm, c):
        ...         return 0.5 * ratio(c, jnp.maximum(norm, c))
        ...     def bound(self, c):
        ...         return 0.5 * c
        >>> dpjax.Mechanism(halved(), threshold=2.0, noise_multiplier=1.0).bound(2.0).item()
        1.0
    """

    role: ClassVar[str] = "rule"

    def weight(self, norm: jax.Array, c: chex.Numeric) -> jax.Array:
        """Returns the factor on a gradient of this norm.

        Args:
            norm: n, of any shape; +inf for a gradient that is not finite.
            c: the threshold, > 0; it broadcasts against `norm`.

        Returns:
            Weights >= 0 of the shape and dtype of `norm`: 0 where the norm is +inf, never NaN.
        """
        raise NotImplementedError

    def bound(self, c: chex.Numeric) -> chex.Numeric:
        """Returns the L2 bound of ``weight(n, c) * n`` over all n >= 0.

        Args:
            c: the threshold, > 0.
        """
        raise NotImplementedError


def as_float(norm: chex.Numeric) -> jax.Array:
    """Returns a norm as a floating-point array; integers become float32.

    Args:
        norm: a number or an array.

    Example:
        >>> as_float(2).dtype.name
        'float32'
    """
    norm = jnp.asarray(norm)
    is_float = jnp.issubdtype(norm.dtype, jnp.floating)
    return norm if is_float else norm.astype(jnp.float32)


def ratio(numerator: chex.Numeric, denominator: jax.Array) -> jax.Array:
    """Divides, and returns 0 where the quotient is not a normal floating-point number.

    A quotient below the normal range has lost digits, so its product with a gradient could exceed
    the bound; one above it is infinite; a NaN or zero denominator has none. A weight of 0 is safe
    in all these cases: the example contributes nothing, which every bound allows.

    Args:
        numerator: usually the threshold.
        denominator: usually made of norms; its dtype is the result's.

    Returns:
        ``numerator / denominator``, or 0.

    Example:
        >>> import jax.numpy as jnp
        >>> ratio(1.0, jnp.array([2.0, 0.0, 1e-40, 3e38, jnp.inf, jnp.nan])).tolist()
        [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    denominator = as_float(denominator)
    limits = jnp.finfo(denominator.dtype)
    has_digits = denominator >= limits.tiny
    quotient = numerator / jnp.where(has_digits, denominator, 1)
    normal = has_digits & (quotient >= limits.tiny) & (quotient <= limits.max)
    return jnp.where(normal, quotient, 0).astype(denominator.dtype)
