"""Random bits: keys, the streams derived from them, and Threefry-2x32 evaluated at counters."""

import hashlib

import chex
import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Words", "checked_key", "fold", "random_words", "stream"]

Words = tuple[jax.Array, jax.Array]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def checked_key(key: chex.PRNGKey | None) -> jax.Array:
    """Returns `key` as a typed threefry key, or raises.

    There is no default key: noise needs one that the caller chose. Keys of other generators are
    refused, because the bits drawn here are defined only for threefry.

    Args:
        key: a typed key, or the two uint32 words of a legacy one.

    Raises:
        TypeError: if it is not a JAX key.
        ValueError: if it is an array of several keys, or a key of another generator.

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
        # Do not show an array: it may be a key's words in another shape.
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
    """Returns the key of a named stream, so that sampling, initialisation and noise share no key.

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
