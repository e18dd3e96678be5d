"""What the engines' programs take from the platform that they are lowered for.

A program may be traced on one machine and lowered, exported or compiled for another. So the engines
ask `by_platform`, which traces a program for each kind and lets JAX choose when it lowers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp

__all__ = ["CPU", "GPU", "TPU", "Platform", "assumed", "assumption", "by_platform"]


Tree = TypeVar("Tree", bound=chex.ArrayTree)


@dataclass(frozen=True)
class Platform:
    """How a platform computes.

    Attributes:
        name: "cpu", "tpu", or "gpu" for any other.
        serial: whether it is fastest with one example's large products at a time.
        bits: of the significand, of the float32 factors that its matrix units take at JAX's default
            precision; None where they take float32. Products of such factors are added in float32.
    """

    name: str
    serial: bool
    bits: int | None

    def rounded(self, x: jax.Array) -> jax.Array:
        """Returns the nearest factors that the matrix units take as they are.

        What they would do with others differs from one to the next: some round, some cut off.
        """
        if self.bits is None or x.dtype != jnp.float32:
            return x
        return jax.lax.reduce_precision(x, 8, self.bits - 1)


CPU = Platform("cpu", serial=True, bits=None)
TPU = Platform("tpu", serial=False, bits=8)
GPU = Platform("gpu", serial=False, bits=11)

_ASSUMED: ContextVar[Platform | None] = ContextVar("assumed_platform", default=None)


@contextmanager
def assumed(platform: Platform) -> Iterator[None]:
    """Traces programs for one platform, wherever they run: to test its arithmetic on another."""
    token = _ASSUMED.set(platform)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def assumption() -> Platform | None:
    """Returns the platform that is assumed here, if one is: not part of the key of JAX's caches."""
    return _ASSUMED.get()


def by_platform(fn: Callable[..., Tree], *args: chex.ArrayTree) -> Tree:
    """Returns ``fn(platform, *args)`` for the platform that the program is lowered for.

    Args:
        fn: a function that returns arrays of the same shapes on every platform.
        *args: pytrees of arrays.

    Example:
        >>> bool(by_platform(lambda platform: jnp.bool_(platform.serial)))  # on a CPU
        True
    """
    if (platform := _ASSUMED.get()) is not None:
        return fn(platform, *args)

    def known(platform: Platform, *args: chex.ArrayTree) -> Tree:
        with assumed(platform):  # so that what `fn` calls is traced for this one alone
            return fn(platform, *args)

    return jax.lax.platform_dependent(
        *args, cpu=partial(known, CPU), tpu=partial(known, TPU), default=partial(known, GPU)
    )
