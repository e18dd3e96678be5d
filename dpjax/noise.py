"""Random bits, Gaussian noise with its whole tail, and its release on a public grid.

One definition of bits serves noise and sampling: Threefry-2x32 with 20 rounds, evaluated at
counters (Salmon et al., Random123, 2011). No flag and no version of JAX changes them.
docs/noise.md says how the noise is made, and what it does and does not protect against.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax._record import Record
from dpjax.spmd import mesh_of
from dpjax.twofloat import two_sum

__all__ = [
    "DEFINITION",
    "SUPPORT",
    "checked_key",
    "fold",
    "grid_unit",
    "on_grid",
    "random_words",
    "release",
    "sigma_gradient",
    "standard_normal",
    "stream",
    "white",
]

Tree = TypeVar("Tree")
Words = tuple[jax.Array, jax.Array]

DEFINITION = "threefry2x32-boxmuller128-grid16"
"""Names how a key becomes noise. It changes whenever the same key would draw other noise."""

SUPPORT = math.sqrt(2 * 97 * math.log(2))
"""The largest standard normal that can be drawn, 11.6: ``sqrt(-2 ln u)`` at the least u, 2^-97."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA

# Leaves of at least this size are drawn in their own shape, on a mesh those of at least the second,
# so that each device draws its own part of a sharded leaf. Smaller ones are drawn together, all of
# them on each device, in rows of this many numbers: a program for each takes long to compile.
_OWN_DRAW = 2**22
_OWN_DRAW_ON_A_MESH = 2**11
_ROW = 128
_PARTS = 4

_LARGEST_LEAF = 2**39  # 8 bits of the first counter word and 31 of the second
_MOST_LEAVES = 2**24

# sin(pi/2 g) = g P(g^2) on [0, 1], relative error 5.3e-9.
_SINE = (
    1.5707963184477016,
    -0.6459637105998557,
    0.079689678947711,
    -0.004673766612126756,
    0.00015148513055898656,
)
# log(1 + f) = f - f^2 / 2 + f^3 P(f) for 1 + f in [sqrt(1/2), sqrt(2)], relative error 5.9e-9.
_LOG = (
    0.3333331672937103,
    -0.25000809000124163,
    0.2000228600674573,
    -0.1662459625484266,
    0.14181213384010238,
    -0.13128402647144047,
    0.1288140795041182,
    -0.07860215081839503,
)
_SQRT_HALF_BITS = 0x3F3504F3  # float32 of sqrt(1/2)
_LOG2 = (0.693359375, -2.12194440e-4)  # two parts: the first times an exponent is exact


def checked_key(key: chex.PRNGKey | None) -> jax.Array:
    """Returns `key` as a typed threefry key, or refuses it.

    Noise needs a key that somebody chose: there is no default. Keys of generators other than
    threefry are refused, since the bits drawn here are defined for threefry alone.

    Args:
        key: a typed key, or the two uint32 words of a legacy one.

    Raises:
        TypeError: if it is not a JAX key.
        ValueError: if it is an array of several keys, or the key of another generator.

    Example:
        >>> checked_key(None)
        Traceback (most recent call last):
        ...
        TypeError: key = None: expected a JAX random key, for instance jax.random.key(seed)
    """
    dtype = getattr(key, "dtype", None)
    if dtype == jnp.uint32 and getattr(key, "shape", ())[-1:] == (2,):
        key = jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32")
    elif dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        # An array is not shown: it may be a key's words in another shape.
        shown = repr(key) if dtype is None else f"an array of {dtype}"
        raise TypeError(
            f"key = {shown}: expected a JAX random key, for instance jax.random.key(seed)"
        )
    typed: jax.Array = key  # type: ignore[assignment]
    if typed.shape != ():
        raise ValueError(f"key has shape {typed.shape}: expected a single key")
    if (name := str(jax.random.key_impl(typed))) != "threefry2x32":
        raise ValueError(f"key is of the generator {name!r}: expected 'threefry2x32'")
    return typed


def fold(key: jax.Array, number: chex.Numeric) -> jax.Array:
    """Returns the key ``E_key(0, number)``, with E the block cipher of `random_words`.

    This is what `jax.random.fold_in` returns for a threefry key.

    Args:
        key: a threefry key.
        number: an integer, possibly traced; modulo 2^32.

    Example:
        >>> key = jax.random.key(3)
        >>> bool(fold(key, 5) == jax.random.fold_in(key, 5))
        True
    """
    known = isinstance(number, int | np.integer)
    low = jnp.uint32(int(number) % 2**32) if known else jnp.asarray(number).astype(jnp.uint32)
    words = _derived(jax.random.key_data(key), low)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


@jax.jit
def _derived(key: jax.Array, number: jax.Array) -> jax.Array:
    """Returns the words of the block (0, number), (2,).

    XLA's CPU compiler repeats the arithmetic of a scalar wherever the scalar is used, and a key is
    used nearly everywhere. It does not repeat a loop, so on a CPU the rounds are a loop.

    Args:
        key: the two words of a threefry key.
        number: uint32.
    """

    def looped(key: jax.Array, number: jax.Array) -> jax.Array:
        keys = jnp.stack([key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)])
        rotations = jnp.asarray([_ROTATIONS[i % 2] for i in range(5)], jnp.uint32)

        def turn(words: Words, given: Words) -> tuple[Words, None]:
            i, four = given
            a, b = _four_rounds(*words, four)
            return (a + keys[i % 3], b + keys[(i + 1) % 3] + i), None

        turns = jnp.arange(1, 6, dtype=jnp.uint32)
        words, _ = jax.lax.scan(turn, (keys[0], number + keys[1]), (turns, rotations))
        return jnp.stack(words)

    def unrolled(key: jax.Array, number: jax.Array) -> jax.Array:
        typed = jax.random.wrap_key_data(key, impl="threefry2x32")
        return jnp.stack(random_words(typed, jnp.zeros_like(number), number))

    return jax.lax.platform_dependent(key, number, cpu=looped, default=unrolled)


def stream(key: jax.Array, name: str) -> jax.Array:
    """Returns the key of a named stream, so that sampling, initialisation and noise share none.

    Args:
        key: the key that all streams derive from.
        name: the stream's name; the first 32 bits of its SHA-256 are folded into the key.

    Example:
        >>> root = jax.random.key(0)
        >>> bool(stream(root, "noise/gradient") == stream(root, "noise/statistic"))
        False
    """
    return fold(key, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big"))


def random_words(key: jax.Array, high: jax.Array, low: jax.Array) -> Words:
    """Returns Threefry-2x32-20 of the counter block (high, low).

    Args:
        key: a threefry key.
        high: uint32, the first word of the block.
        low: uint32, the second word of the block; it and `high` broadcast.

    Returns:
        Two uniform uint32 words for each block.

    Example:
        >>> zero = jnp.uint32(0)
        >>> words = random_words(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)), zero, zero)
        >>> [f"{int(word):08x}" for word in words]  # Random123's known answer
        ['6b200159', '99ba4efe']

    Reference: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011,
    https://doi.org/10.1145/2063384.2063405
    """
    data = jax.random.key_data(key)
    keys = (data[0], data[1], data[0] ^ data[1] ^ jnp.uint32(_PARITY))
    a, b = high + keys[0], low + keys[1]
    for i in range(5):
        a, b = _four_rounds(a, b, np.asarray(_ROTATIONS[i % 2], np.uint32))
        a, b = a + keys[(i + 1) % 3], b + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return a, b


def _four_rounds(a: jax.Array, b: jax.Array, rotations: jax.Array | np.ndarray) -> Words:
    for rotation in rotations:
        a = a + b
        b = a ^ ((b << rotation) | (b >> (np.uint32(32) - rotation)))
    return a, b


def standard_normal(key: jax.Array, like: Tree) -> Tree:
    """Returns standard normals shaped like a tree, in float32, or float64 for float64 leaves.

    ``z = sqrt(-2 ln u) sin(pi/2 g)`` with a random sign: u from 96 bits and g from 31, each in the
    middle of its cell. A normal is a function of (key, leaf, index within the leaf) alone, whatever
    the sharding: leaf j at row-major index i reads the counter blocks ``(2^8 j + (2i >> 32), 2i)``
    and the one after it.

    The distribution is symmetric, never 0, and ends at SUPPORT (11.6). Between, it is discrete, on
    float32 numbers. Logarithm and sine are polynomials here, and only the square root is the
    platform's own. On CPU, z is accurate to a few units in the last place, and ``P(|Z| > t)`` is
    right to 1e-5 up to 7 sigma, where `jax.random.normal` ends at -5.42 and 5.22. In a NumPy copy
    of the map so it is with or without fused multiply-adds, and with a square root that is up to 2
    units in the last place off; nothing is measured on other platforms.

    Args:
        key: the key of this one draw; never use it for another.
        like: a pytree of floating-point arrays, of which only shape and dtype are read.

    Raises:
        ValueError: for a leaf of 2^39 numbers or more, or more than 2^24 leaves.

    Example:
        >>> z = standard_normal(jax.random.key(0), jnp.zeros(3))
        >>> bool(jnp.all(z[:2] == standard_normal(jax.random.key(0), jnp.zeros(2))))
        True
    """
    leaves, treedef = jax.tree.flatten(like)
    drawn: dict[int, jax.Array] = {}
    for draw in _draws(leaves):
        drawn.update(draw.apart(draw.with_normals(key, lambda z: z)))
    return jax.tree.unflatten(treedef, [drawn[i] for i in range(len(leaves))])


def grid_unit(std: chex.Numeric) -> jax.Array:
    """Returns the spacing of the public grid: the largest power of two not above ``std / 16``.

    Args:
        std: the standard deviation of the noise, > 0.

    Example:
        >>> [float(grid_unit(std)) for std in (16.0, 31.0, 0.5)]
        [1.0, 1.0, 0.03125]
    """
    std = jnp.asarray(std)
    std = std if std.dtype == jnp.float64 else std.astype(jnp.float32)
    _, exponent = jnp.frexp(std / 16)
    return jnp.ldexp(jnp.ones_like(std), exponent - 1)


def on_grid(high: jax.Array, low: jax.Array, noise: jax.Array, unit: chex.Numeric) -> jax.Array:
    """Returns ``high + low + noise`` rounded to a multiple of `unit`, in two-float arithmetic.

    Sum and rounding err by less than 1e-6 of a unit. The result is thus the multiple nearest to the
    exact sum, unless the sum lies that close to the middle between two.

    Args:
        high: the leading half of the sum.
        low: the trailing half of the sum; ``high + low`` is exact.
        noise: the noise to add.
        unit: the spacing of the grid, a power of two.

    Example:
        >>> on_grid(jnp.float32(1e6), jnp.float32(0.3), jnp.float32(0.3), 1.0).item()
        1000001.0
    """
    # Exact, being a power of two: a compiler that contracts product and sum changes nothing.
    a, b = high / unit, noise / unit
    total, error = two_sum(a, b)
    whole = jnp.round(total)
    rest = jnp.round((total - whole) + (error + low / unit))
    multiple = whole + rest
    return jnp.where(multiple == 0, 0, multiple * unit)  # one zero: its sign would tell more


def release(key: jax.Array, high: Tree, low: Tree, std: chex.Numeric) -> Tree:
    """Returns ``high + low + std z``, z standard normal, rounded to the public grid of `std`.

    The grid does not depend on the data. Without it, float32 would round each sum to a lattice of
    its own, and some outputs would be possible for one data set only. Rounding is post-processing
    of the noisy sum; it adds at most ``unit^2 / 12``, 0.03%, to the variance.

    Args:
        key: the key of this one release; never use it for another.
        high: the leading halves of the exact sum, a pytree of floating-point arrays.
        low: the trailing halves of the exact sum.
        std: the standard deviation in every coordinate; 0 releases the sum itself, without a grid.

    Privacy:
        Event: a Gaussian of standard deviation `std`, for sums that neighbours change by a bounded
        amount. Two differences remain. The probability of a cell is Gaussian times ``1 + r``, where
        r is 2e-7 to 2e-6 for most of the mass, which is not accounted (docs/noise.md). Outputs
        beyond SUPPORT times `std` have probability 0; `dpjax.accounting` adds what that can cost to
        delta.

    Example:
        >>> out = release(jax.random.key(0), jnp.zeros(2), jnp.zeros(2), 16.0)
        >>> bool(jnp.all(out == jnp.round(out)))
        True
    """

    def noisy(z: jax.Array, total: jax.Array, rest: jax.Array) -> jax.Array:
        scale = jnp.asarray(std, z.dtype)
        unit = jnp.where(scale > 0, grid_unit(scale), 1)
        rounded = on_grid(total, rest, scale * z, unit)
        # Noise so small beside the sum that their ratio overflows is no noise: there is no grid.
        return jnp.where((scale > 0) & jnp.isfinite(rounded), rounded, total + (rest + scale * z))

    highs, treedef = jax.tree.flatten(high)
    sums = [highs, jax.tree.leaves(low)]
    released: dict[int, jax.Array] = {}
    for draw in _draws(highs):
        if draw.mesh is None:
            together = [draw.together(half) for half in sums]
            released.update(draw.apart(draw.with_normals(key, noisy, *together)))
        else:  # where leaves stay where they are
            normals = draw.apart(draw.with_normals(key, lambda z: z))
            released.update({i: noisy(z, *(half[i] for half in sums)) for i, z in normals.items()})
    return jax.tree.unflatten(treedef, [released[i] for i in range(len(highs))])


class _NoiseRecord(Record):
    role: ClassVar[str] = "noise"


@dataclass(frozen=True)
class white(_NoiseRecord):
    """Independent Gaussian noise in every coordinate and at every step.

    Privacy:
        Event: one Gaussian per step; see `release`. Steps compose as independent releases.

    Example:
        >>> out = white().release(jax.random.key(0), jnp.zeros(2), jnp.zeros(2), 1.0)
        >>> out.shape
        (2,)
    """

    def release(self, key: jax.Array, high: Tree, low: Tree, std: chex.Numeric) -> Tree:
        """Returns the noisy sum on its public grid; the arguments are those of `release`.

        Args:
            key: the key of this one release; never use it for another.
            high: the leading halves of the exact sum.
            low: the trailing halves of the exact sum.
            std: the standard deviation in every coordinate.
        """
        return release(key, high, low, std)


def sigma_gradient(sigma: chex.Numeric, sigma_statistic: float | None) -> jax.Array:
    """Returns sigma_T, the noise multiplier of the gradient in a joint release of total `sigma`.

    ``sigma_T = (sigma^-2 - sigma_S^-2)^(-1/2) = sigma / sqrt(1 - (sigma / sigma_S)^2)``.

    Args:
        sigma: the total, accounted noise multiplier.
        sigma_statistic: sigma_S, the noise multiplier of the statistic; None without one.

    Returns:
        sigma_T; `sigma` itself without a statistic, and NaN if sigma > sigma_S.

    Example:
        >>> round(float(sigma_gradient(3.0, 5.0)), 4)
        3.75
    """
    sigma = jnp.asarray(sigma, jnp.float32)
    if sigma_statistic is None:
        return sigma
    return sigma / jnp.sqrt(1.0 - jnp.square(sigma / sigma_statistic))


@dataclass(frozen=True)
class _OwnDraw:
    """The draw of one leaf, in its own shape."""

    number: int
    shape: tuple[int, ...]
    dtype: jnp.dtype
    mesh: jax.sharding.AbstractMesh | None

    def with_normals(
        self, key: jax.Array, fn: Callable[..., jax.Array], *given: jax.Array
    ) -> jax.Array:
        """Returns ``fn(normals, *given)``."""
        first = jnp.uint32(self.number << 8)
        z = _normal_at(key, first, *_row_major_words(self.shape), self.dtype)
        return fn(z, *given)

    def together(self, leaves: Sequence[jax.Array]) -> jax.Array:
        """Returns the leaf."""
        return leaves[self.number].astype(self.dtype)

    def apart(self, leaf: jax.Array) -> dict[int, jax.Array]:
        """Returns the leaf by its number."""
        return {self.number: leaf}


@dataclass(frozen=True)
class _JointDraw:
    """The draw of several leaves, laid out in rows that belong to one leaf each."""

    shapes: dict[int, tuple[int, ...]]
    dtype: jnp.dtype
    mesh: jax.sharding.AbstractMesh | None

    @property
    def rows(self) -> dict[int, int]:
        """How many rows each leaf has."""
        return {number: -(-math.prod(shape) // _ROW) for number, shape in self.shapes.items()}

    def with_normals(
        self, key: jax.Array, fn: Callable[..., jax.Array], *given: jax.Array
    ) -> jax.Array:
        """Returns ``fn(normals, *given)``, for a function of single numbers."""
        counts = list(self.rows.values())
        leaf = np.repeat(np.fromiter(self.rows, np.uint32), counts)
        begin = np.concatenate([np.arange(count, dtype=np.uint32) for count in counts]) * _ROW
        more = -len(leaf) % _PARTS
        first, begin = (np.pad(words, (0, more)) for words in (leaf << 8, begin))

        def drawn(first: jax.Array, begin: jax.Array, *own: jax.Array) -> jax.Array:
            low = begin[:, None] + jax.lax.iota(jnp.uint32, _ROW)
            return fn(_normal_at(key, first[:, None], jnp.zeros_like(low), low, self.dtype), *own)

        def in_parts(*rows: jax.Array) -> jax.Array:
            # Else XLA's CPU compiler writes the whole draw once more for each leaf that takes a
            # slice. The first of `given` is overwritten part by part.
            parts = [x.reshape(_PARTS, len(x) // _PARTS, *x.shape[1:]) for x in rows]
            empty = jnp.zeros((*parts[0].shape, _ROW), self.dtype)

            def turn(i: jax.Array, out: jax.Array) -> jax.Array:
                own = [x[i] for x in [*parts[:2], *([out, *parts[3:]] if given else [])]]
                return out.at[i].set(drawn(*own))

            found = jax.lax.fori_loop(0, _PARTS, turn, parts[2] if given else empty)
            return found.reshape(-1, _ROW)

        def at_once(*rows: jax.Array) -> jax.Array:
            return jax.lax.optimization_barrier(drawn(*rows))  # for the same reason

        rows = [jnp.pad(x.reshape(-1, _ROW), ((0, more), (0, 0))) for x in given]
        words = (jnp.asarray(first), jnp.asarray(begin))
        return jax.lax.platform_dependent(*words, *rows, cpu=in_parts, default=at_once)

    def together(self, leaves: Sequence[jax.Array]) -> jax.Array:
        """Returns the leaves in their rows, filled up with zeros."""
        parts = []
        for number, shape in self.shapes.items():
            parts.append(leaves[number].reshape(-1).astype(self.dtype))
            if fill := -math.prod(shape) % _ROW:
                parts.append(jnp.zeros(fill, self.dtype))
        return jnp.concatenate(parts)

    def apart(self, rows: jax.Array) -> dict[int, jax.Array]:
        """Returns the leaves, from their rows.

        All of them on each device of a mesh: their parts would otherwise be sent around.
        """
        flat, start, counts = rows.reshape(-1), 0, self.rows
        leaves: dict[int, jax.Array] = {}
        for number, shape in self.shapes.items():
            own = jax.lax.slice(flat, (start,), (start + math.prod(shape),)).reshape(shape)
            if self.mesh is not None:
                own = jax.lax.with_sharding_constraint(
                    own, NamedSharding(self.mesh, PartitionSpec())
                )
            leaves[number] = own
            start += counts[number] * _ROW
        return leaves


def _draws(leaves: Sequence[jax.Array]) -> list[_OwnDraw | _JointDraw]:
    """Returns the draws that together make the noise of all leaves."""
    if len(leaves) > _MOST_LEAVES:
        raise ValueError(f"{len(leaves)} leaves: expected at most {_MOST_LEAVES}")
    mesh = next(filter(None, map(mesh_of, leaves)), None)
    own: list[_OwnDraw | _JointDraw] = []
    small: dict[jnp.dtype, dict[int, tuple[int, ...]]] = {}
    for i, leaf in enumerate(leaves):
        if leaf.size >= _LARGEST_LEAF:
            raise ValueError(f"a leaf has shape {leaf.shape}: expected fewer than 2^39 numbers")
        dtype = jnp.promote_types(leaf.dtype, jnp.float32)
        if leaf.size >= (_OWN_DRAW if mesh is None else _OWN_DRAW_ON_A_MESH):
            own.append(_OwnDraw(i, leaf.shape, dtype, mesh))
        else:
            small.setdefault(dtype, {})[i] = leaf.shape
    return own + [_JointDraw(shapes, dtype, mesh) for dtype, shapes in small.items()]


def _row_major_words(shape: Sequence[int]) -> Words:
    """Returns the row-major index of every number of a shape, as two words."""
    split = len(shape)
    while split > 0 and math.prod(shape[split - 1 :]) < 2**32:
        split -= 1
    within = _row_major(shape, range(split, len(shape)))
    if split == 0:
        return jnp.zeros_like(within), within
    high, low = _multiplied(_row_major(shape, range(split)), math.prod(shape[split:]))
    low = low + within
    return high + (low < within).astype(jnp.uint32), low


def _row_major(shape: Sequence[int], axes: Sequence[int]) -> jax.Array:
    """Returns the row-major index over some neighbouring axes, an array of the whole shape."""
    index = jnp.zeros(shape, jnp.uint32)
    for axis in axes:
        step = math.prod(shape[axis + 1 : axes[-1] + 1])
        index = index + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(step)
    return index


def _multiplied(a: jax.Array, b: int) -> Words:
    """Returns the product of a word and a number below 2^32 as two words, by halves of 16 bits."""
    a_high, a_low = a >> jnp.uint32(16), a & jnp.uint32(0xFFFF)
    b_high, b_low = jnp.uint32(b >> 16), jnp.uint32(b & 0xFFFF)
    middle = a_high * b_low + ((a_low * b_low) >> jnp.uint32(16))
    other = a_low * b_high + (middle & jnp.uint32(0xFFFF))
    high = a_high * b_high + (middle >> jnp.uint32(16)) + (other >> jnp.uint32(16))
    return high, a * jnp.uint32(b)


# Jitted, so that leaves of one shape are traced once, and an eager caller gets the bits of a jitted
# one: compiled as a whole, products and sums are fused alike.
@partial(jax.jit, static_argnames="dtype")
def _normal_at(
    key: jax.Array, first: jax.Array, high: jax.Array, low: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """Returns the normals of the index (high, low) in leaves whose counters begin with `first`."""
    one = jnp.uint32(1)
    block = first + ((high << one) | (low >> jnp.uint32(31)))
    words = random_words(key, block, low << one)
    more = random_words(key, block, (low << one) | one)
    return normal_of_words((*words, more[0]), more[1], dtype)


def normal_of_words(
    radius: tuple[jax.Array, jax.Array, jax.Array], angle: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """Returns the standard normal that 128 random bits encode; see `standard_normal`.

    Args:
        radius: 96 bits of u, as three words, the leading one first: ``u = (bits + 1/2) / 2^96``.
        angle: 31 bits of g, then one of the sign.
        dtype: float32 or float64.
    """
    upper = radius[0] >= jnp.uint32(2**31)
    # The smaller of u and 1 - u, which the complement of the bits gives without rounding.
    a, b, c = (word ^ jnp.where(upper, jnp.uint32(0xFFFFFFFF), jnp.uint32(0)) for word in radius)
    near = _of_96_bits(a, b, c, dtype)
    g = (_signed(angle >> jnp.uint32(1), dtype) + 0.5) * 2.0**-31
    if dtype == jnp.float64:
        log = jnp.where(upper, jnp.log1p(-near), jnp.log(near))
        size = jnp.sqrt(-2 * log) * jnp.sin(jnp.pi / 2 * g)
    else:
        # pi/2 in float32, the sine's first coefficient, is 2.8e-8 too large: the radius makes up.
        size = jnp.sqrt(-2 * (1 - 2.0**-24) * _log(near, upper)) * (g * _polynomial(_SINE, g * g))
    return jnp.where(angle & jnp.uint32(1), -size, size)


def _of_96_bits(a: jax.Array, b: jax.Array, c: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Returns ``(bits + 1/2) / 2^96``: four parts of 24 bits, each exact, the smallest first."""
    byte, half = jnp.uint32(0xFF), jnp.uint32(0xFFFF)
    parts = (
        c & jnp.uint32(0xFFFFFF),
        ((b & half) << jnp.uint32(8)) | (c >> jnp.uint32(24)),
        ((a & byte) << jnp.uint32(16)) | (b >> jnp.uint32(16)),
        a >> jnp.uint32(8),
    )
    total = jnp.asarray(2.0**-97, dtype)
    for part, power in zip(parts, (-96, -72, -48, -24), strict=True):
        total = total + _signed(part, dtype) * 2.0**power
    return total


def _log(near: jax.Array, upper: jax.Array) -> jax.Array:
    """Returns ``ln u`` in float32, for u = 1 - near where `upper`, else u = near <= 1/2."""
    # u = (1 + f) 2^e with 1 + f in [sqrt(1/2), sqrt(2)).
    offset = jax.lax.bitcast_convert_type(near, jnp.int32) - _SQRT_HALF_BITS
    mantissa = (offset & 0x7FFFFF) + _SQRT_HALF_BITS
    low_f = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1
    far = near > 1 - math.sqrt(0.5)
    f = jnp.where(upper, jnp.where(far, 1 - 2 * near, -near), low_f)
    e = jnp.where(upper, jnp.where(far, -1, 0), offset >> 23).astype(jnp.float32)
    correction = f * f * (f * _polynomial(_LOG, f) - 0.5)
    return e * _LOG2[0] + (f + (correction + e * _LOG2[1]))


def _polynomial(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _signed(word: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Returns a word below 2^31 as a float; by way of int32, which every platform converts fast."""
    return word.astype(jnp.int32).astype(dtype)
