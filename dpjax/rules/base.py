"""What a rule is, and the one division that all of them share."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpjax._record import Record

__all__ = ["Rule", "as_float", "ratio"]


class Rule(Record):
    """A scaling rule: ``contribution = weight(n, c) * g`` with ``|contribution| <= bound(c)``.

    Subclasses are frozen dataclasses whose fields are public numbers. `dpjax.testing.check_rule`
    holds a subclass to the contract.
    """

    role: ClassVar[str] = "rule"

    no_bound: ClassVar[str | None] = None
    """Why the rule bounds nothing; None for every rule that can be private."""

    def weight(self, norm: jax.Array, c: Any) -> jax.Array:
        """Returns the factor on a gradient of this norm; 0 for a norm of +inf, never NaN."""
        raise NotImplementedError

    def bound(self, c: Any) -> Any:
        """Returns the L2 bound of ``weight(n, c) * n`` over all n >= 0."""
        raise NotImplementedError


def as_float(norm: Any) -> jax.Array:
    """Returns a norm as a floating-point array; integers become float32."""
    norm = jnp.asarray(norm)
    is_float = jnp.issubdtype(norm.dtype, jnp.floating)
    return norm if is_float else norm.astype(jnp.float32)


def ratio(numerator: Any, denominator: jax.Array) -> jax.Array:
    """Divides, and gives 0 where the quotient is no normal number.

    A quotient below the normal range has lost digits (its product with a gradient could exceed
    the bound), one above it is infinite, and a NaN or zero denominator has none: an example
    there contributes nothing, which every bound allows.

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
