"""The base class of samplings: draws a step's batch, whole or by shard, and bounds its size."""

import math
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import _checks, noise
from dpjax._record import Record
from dpjax.devices import leading_axes
from dpjax.sampling.batches import Drawn
from dpjax.sampling.draws import count, in_front

__all__ = ["Sampling"]

_MOST_ROWS = 2**31 - 1  # row numbers are int32


class Sampling(Record):
    """Draws batches: `Poisson`, `TruncatedPoisson`, `FixedSize` or `FullBatch`.

    Attributes:
        rate: the probability that an example is drawn, before any truncation.
        batch_size: B, the expected batch size, before any truncation.
        dataset_size: N, the number of examples; None if it is not needed.
    """

    role: ClassVar[str] = "sampling"

    if TYPE_CHECKING:  # at run time, dataclasses would take these properties for default values

        @property
        def rate(self) -> float:
            """The probability that an example is drawn."""

        @property
        def batch_size(self) -> float | None:
            """B."""

        @property
        def dataset_size(self) -> int | None:
            """N."""

    def draw(
        self,
        key: chex.PRNGKey,
        step: chex.Numeric,
        part: tuple[chex.Numeric, int] | None = None,
        sharding: NamedSharding | None = None,
    ) -> Drawn:
        """Draws the batch of a step. Works under `jit`: the shape is fixed.

        Whether row i is in the batch of step t depends on (key, t, i) and, where the size is
        capped, on the random numbers of the other rows; never on devices, processes or parts.

        Args:
            key: the key of the run, the same at every step. It may be the key given to `privatize`:
                each derives its own stream.
            step: t, from 0; possibly traced.
            part: ``(start, rows)`` for the same batch restricted to the rows
                ``start, ..., start + rows - 1``. `start` may be traced, as from
                `jax.lax.axis_index`. `Poisson` draws only for these rows; the others draw for all N
                and keep the part.
            sharding: how the rows of the data are split over a mesh, ``data.sharding``: each device
                then draws for the rows that it holds. Every device holds the same number of rows,
                so the data may have a few rows more than N at the end, which are never drawn.

        Returns:
            The batch, of a fixed number of rows, some of which may be padding; see `Drawn`.

        Raises:
            TypeError: if `key` is not a JAX key.
            ValueError: if the number of rows is unknown or does not fit int32, or both `part` and
                `sharding` are given.

        Example:
            >>> from dpjax.sampling import Poisson
            >>> sampling = Poisson(batch_size=2, dataset_size=4)
            >>> key = jax.random.key(0)
            >>> whole = sampling.draw(key, step=7)
            >>> first, last = (sampling.draw(key, 7, part=(start, 2)) for start in (0, 2))
            >>> whole.rows().tolist() == [*first.rows().tolist(), *last.rows().tolist()]
            True
        """
        if self.dataset_size is None:
            raise ValueError("dataset_size = None: expected the number of rows to draw from")
        if self.dataset_size > _MOST_ROWS:
            raise ValueError(
                f"dataset_size = {self.dataset_size}: expected at most 2^31 - 1 rows to draw from"
            )
        if sharding is not None:
            if part is not None:
                raise ValueError(f"part = {part!r} with a sharding: expected one of them")
            return _drawn_by_shard(self, noise.checked_key(key), jnp.asarray(step), sharding)
        start, length = (0, self.dataset_size) if part is None else part
        length = _checks.integer("part[1]", length, at_least=1)
        if isinstance(start, int | np.integer):
            start = _checks.integer("part[0]", start, at_least=0)
        return _drawn(self, noise.checked_key(key), jnp.asarray(step), jnp.int32(start), length)

    def _taken(self, key: jax.Array, rows: jax.Array) -> jax.Array:
        """Returns a mask of the rows, all below N, that are in the batch of a step's key."""
        raise NotImplementedError

    def most_rows(self, length: int) -> int:
        """Returns the size of the largest batch that can be drawn from `length` rows.

        Args:
            length: how many rows of the data are drawn from.

        Returns:
            At most `length`; public, like the sampling.

        Example:
            >>> from dpjax.sampling import FixedSize, Poisson
            >>> FixedSize(3, 10).most_rows(10), Poisson(3, 10).most_rows(10)
            (3, 10)
        """
        return length

    def likely_rows(self, length: int) -> int:
        """Returns a bound on the rows that are drawn from `length` rows, not exceeded in practice.

        ``m + t`` with m the expected number and ``t^2 = 2 ln(1e20) (m + t / 3)``. By Bernstein's
        inequality, more are drawn with a probability below 1e-20.

        Args:
            length: how many rows of the data are drawn from.

        Returns:
            At most `most_rows`; public, like the sampling.

        Example:
            >>> from dpjax.sampling import Poisson
            >>> Poisson(256, 60_000).likely_rows(60_000)
            426

        Reference: Boucheron, Lugosi and Massart, Concentration Inequalities, 2013, section 2.8.
        """
        mean = self.rate * length
        third = math.log(1e20) / 3
        above = third + math.sqrt(third**2 + 6 * third * mean)
        return min(self.most_rows(length), math.ceil(mean + above))


# Jitted, so that an eager loop compiles it once.
@partial(jax.jit, static_argnames=("sampling", "length"))
def _drawn(
    sampling: Sampling, key: jax.Array, step: jax.Array, start: jax.Array, length: int
) -> Drawn:
    size = sampling.dataset_size or 0  # known: `draw` has checked it
    own = noise.fold(noise.stream(key, "sampling"), step)
    rows = start + jnp.arange(length, dtype=jnp.int32)
    taken = sampling._taken(own, jnp.minimum(rows, size - 1)) & (rows < size)
    return Drawn(
        in_front(taken, rows, sampling.most_rows(length), fill=size),
        count(taken),
        start,
        sampling,
        length,
    )


def _drawn_by_shard(
    sampling: Sampling, key: jax.Array, step: jax.Array, sharding: NamedSharding
) -> Drawn:
    """Draws on each device for its own rows; no device sees another's."""
    axes = leading_axes(sharding)
    context = jax.sharding.get_abstract_mesh()  # its axes may be automatic at the moment
    mesh = sharding.mesh if context.empty else context
    shards = math.prod(mesh.shape[axis] for axis in axes)
    length = -(-(sampling.dataset_size or 0) // shards)

    def of_device(key: jax.Array, step: jax.Array) -> tuple[jax.Array, ...]:
        shard = jax.lax.axis_index(axes) if axes else jnp.int32(0)
        own = _drawn(sampling, key, step, shard * length, length)
        return own.indices[None], own.size[None], own.start[None]

    everywhere, split = PartitionSpec(), PartitionSpec(axes)
    by_device = jax.shard_map(
        of_device, mesh=mesh, in_specs=(everywhere, everywhere), out_specs=split
    )
    indices, size, start = by_device(key, step)
    where = NamedSharding(sharding.mesh, split)
    return Drawn(indices, size, start, sampling, shards * length, where)
