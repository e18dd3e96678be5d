"""What a method is: its mechanism, how it changes the loss, and its transformation."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import optax

from dpjax import _checks
from dpjax._record import Record
from dpjax.adaclip import adaclip
from dpjax.auto_dp import auto_dp_as_printed_sum, auto_dp_as_printed_transformation
from dpjax.batch_sums import ClippedSum
from dpjax.mechanism import Guarantee, Mechanism
from dpjax.momentum import inner_momentum
from dpjax.privatize import clipped_sum, privatize
from dpjax.stored_momentum import stored_momentum

__all__ = ["Method"]


class _MethodRecord(Record):
    role: ClassVar[str] = "method"


@dataclass(frozen=True)
class Method(_MethodRecord):
    """A published method, ready to run: every script uses all of them in the same three lines.

    Args:
        name: the constructor's name in `dpjax.methods`.
        mechanism: what runs and is accounted.
        momentum: inner momentum per example, recomputed or stored; None for most methods.
        outer_momentum: decay of the momentum over released gradients, in (0, 1); None for none.
        preconditioner: coordinate-wise standardisation; None for all but AdaCliP.

    Privacy:
        That of `mechanism`, see `guarantee`: momentum and preconditioning change what an example
        contributes within its bound, or post-process what was released. Neither costs anything.

    Example:
        >>> import dpjax, jax, jax.numpy as jnp
        >>> method = dpjax.methods.psasc_momentum(noise_multiplier=1.0)   # the one line
        >>> loss_fn = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)
        >>> tx = optax.chain(method.transformation(4, jax.random.key(0)), optax.sgd(0.1))
        >>> params = jnp.zeros(2)
        >>> state = tx.init(params)
        >>> grads = dpjax.per_example_grads(method.loss(loss_fn, state))(params, jnp.ones((4, 2)))
        >>> updates, state = tx.update(grads, state, params)
        >>> updates.shape
        (2,)
    """

    name: str
    mechanism: Mechanism
    momentum: inner_momentum | stored_momentum | None = None
    outer_momentum: float | None = None
    preconditioner: adaclip | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        # Folders are named by it: a name from a file must not lead elsewhere.
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z_][\w.-]*", self.name):
            raise ValueError(f"name = {self.name!r}: expected a word, such as a constructor's name")
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(f"mechanism = {self.mechanism!r}: expected a dpjax.Mechanism")
        if not isinstance(self.momentum, inner_momentum | stored_momentum | None):
            raise TypeError(f"momentum = {self.momentum!r}: expected inner or stored momentum")
        if isinstance(self.momentum, stored_momentum):
            # The mechanism may be accounted without the method.
            self._set(mechanism=self.mechanism.replace(full_batch=True))
        if not isinstance(self.preconditioner, adaclip | None):
            raise TypeError(f"preconditioner = {self.preconditioner!r}: expected adaclip or None")
        if self.mechanism.rule.no_bound is not None and self.preconditioner is not None:
            raise ValueError(
                f"preconditioner = {self.preconditioner!r}: expected None with a rule that has no "
                "bound"
            )
        if self.outer_momentum is not None:
            decay = _checks.fraction("outer_momentum", self.outer_momentum)
            self._set(outer_momentum=decay)

    @property
    def guarantee(self) -> Guarantee:
        """What the method protects, or why nothing."""
        guarantee = self.mechanism.guarantee
        if isinstance(self.momentum, stored_momentum) and guarantee.private:
            note = " Every example takes part in every step: no amplification by sampling."
            return replace(guarantee, statement=guarantee.statement + note)
        return guarantee

    def loss(self, loss_fn: Callable[..., jax.Array], opt_state: Any) -> Callable[..., jax.Array]:
        """Returns the loss whose per-example gradients the method uses; mostly `loss_fn` itself.

        Args:
            loss_fn: the loss of one example, as for `dpjax.per_example_grads`.
            opt_state: the current state of the chain that `transformation` stands in.
        """
        if isinstance(self.momentum, inner_momentum):
            return self.momentum.loss(loss_fn, opt_state)
        return loss_fn

    def transformation(
        self, expected_batch_size: float, key: Any, axis_name: str | Sequence[str] | None = None
    ) -> optax.GradientTransformationExtraArgs:
        """Returns the optax transformation; its arguments are those of `dpjax.privatize`."""
        arguments = (self.mechanism, expected_batch_size, key, axis_name)
        if self.mechanism.rule.no_bound is not None:
            private = auto_dp_as_printed_transformation(*arguments)
        elif self.preconditioner is not None:
            private = self.preconditioner.transformation(*arguments)
        else:
            private = privatize(*arguments)
        if isinstance(self.momentum, stored_momentum):
            private = self.momentum.wrap(private)
        after: list[optax.GradientTransformation] = []
        if self.outer_momentum is not None:
            after.append(optax.trace(self.outer_momentum))
        if isinstance(self.momentum, inner_momentum):
            after.append(self.momentum.remember())
        return optax.chain(private, *after) if after else private

    def clipped_sum(self, grads: Any, opt_state: Any, mask: Any = None) -> ClippedSum:
        """Scales and sums a part of a logical batch, to be noised once; see `dpjax.clipped_sum`."""
        if self.mechanism.rule.no_bound is not None:
            return auto_dp_as_printed_sum(self.mechanism, grads, mask)
        if self.preconditioner is not None:
            return self.preconditioner.clipped_sum(self.mechanism, grads, opt_state, mask)
        if isinstance(self.momentum, stored_momentum):
            raise ValueError(f"{self.name} takes its full batch in one part: expected tx.update")
        return clipped_sum(self.mechanism, grads, opt_state, mask)
