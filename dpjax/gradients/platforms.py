"""How each platform computes, and programs that depend on the platform they are lowered for.

A program may be traced on one machine and lowered, exported or compiled for another. So the engines
call `by_platform`, which traces a program for each kind of platform; JAX chooses when it lowers.
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
        serial: whether large products are fastest one example at a time.
        bits: the number of significand bits of the float32 factors that its matrix units take at
            JAX's default precision; None for all of float32. Products are added in float32.
    """

    name: str
    serial: bool
    bits: int | None

    def rounded(self, x: jax.Array) -> jax.Array:
        """Returns the nearest factors that the matrix units take without rounding.

        Other factors are treated differently by different units: some round, some truncate.
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
    """Traces programs for one platform, wherever they run, to test its arithmetic elsewhere."""
    token = _ASSUMED.set(platform)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def assumption() -> Platform | None:
    """Returns the assumed platform, if any; it is not part of the key of JAX's caches."""
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
        with assumed(platform):  # so that whatever `fn` calls is traced only for this platform
            return fn(platform, *args)

    return jax.lax.platform_dependent(
        *args, cpu=partial(known, CPU), tpu=partial(known, TPU), default=partial(known, GPU)
    )
