"""Batches as they are drawn: which rows, and how many of them are real."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

if TYPE_CHECKING:
    from dpjax.sampling.base import Sampling

__all__ = ["Drawn", "Packed"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("indices", "size", "start"),
    meta_fields=("sampling", "length", "sharding"),
)
@dataclass(frozen=True)
class Drawn:
    """A batch, or the part of it in some range of rows: ``grads_of(params, data, drawn)``.

    Attributes:
        indices: row numbers in the whole data set, increasing, followed by padding; private.
        size: the number of rows drawn; private.
        start: the first row of the range; 0 for the whole data set.
        sampling: the sampling that drew it.
        length: the number of rows in the range, which is also that of the data it is used with.
        sharding: how the rows are split over devices; the arrays above then have a leading axis
            that is split in the same way. None if it was not given.

    Privacy:
        Which rows were drawn, and how many, must stay secret: amplification by sampling relies on
        it.
    """

    indices: jax.Array
    size: jax.Array
    start: jax.Array
    sampling: "Sampling"
    length: int
    sharding: NamedSharding | None = None

    def rows(self) -> np.ndarray:
        """Returns the row numbers as a NumPy array, without padding; outside `jit` only.

        Example:
            >>> from dpjax.sampling import FullBatch
            >>> FullBatch(3).draw(jax.random.key(0), step=0).rows()
            array([0, 1, 2], dtype=int32)
        """
        parts = np.atleast_2d(np.asarray(self.indices))
        sizes = np.atleast_1d(np.asarray(self.size))
        return np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def packed(self) -> "Packed":
        """Returns the batch for use with rows gathered elsewhere, in the order of `rows`.

        Raises:
            ValueError: if the batch was drawn with a sharding, because its rows are on the devices.

        Example:
            >>> from dpjax.sampling import FullBatch
            >>> FullBatch(3).draw(jax.random.key(0), step=0).packed().indices.tolist()
            [0, 1, 2]
        """
        if self.sharding is not None:
            raise ValueError(
                "a batch drawn with a sharding is gathered on its devices: expected one drawn "
                "without, for rows that were gathered elsewhere"
            )
        return Packed(self.indices, self.size, self.sampling)


@partial(
    jax.tree_util.register_dataclass, data_fields=("indices", "size"), meta_fields=("sampling",)
)
@dataclass(frozen=True)
class Packed:
    """A batch whose rows were gathered elsewhere: ``grads_of(params, rows, drawn.packed())``.

    Attributes:
        indices: the row number in the whole data set of each row; private.
        size: the number of real rows, the others being padding; private.
        sampling: the sampling that drew it.
    """

    indices: jax.Array
    size: jax.Array
    sampling: "Sampling"

    def part(self, begin: int, length: int) -> "Packed":
        """Returns the part of the batch at positions ``begin, ..., begin + length - 1``.

        Args:
            begin: the first position.
            length: the number of positions; those beyond the end are padding.

        Example:
            >>> from dpjax.sampling import FullBatch
            >>> packed = FullBatch(5).draw(jax.random.key(0), step=0).packed()
            >>> last = packed.part(3, 3)
            >>> last.indices.tolist(), int(last.size)
            ([3, 4, 0], 2)
        """
        indices = self.indices[begin : begin + length]
        padded = jnp.pad(indices, (0, length - indices.shape[0]))
        return Packed(padded, jnp.clip(self.size - begin, 0, length), self.sampling)
