"""A state as named arrays in host memory, and back, bit for bit: what a checkpoint stores."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Leaf", "describe", "difference", "from_host", "from_plain", "placeholders", "to_host"]

_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


class Leaf(NamedTuple):
    """What is known of one leaf beside its bytes.

    Attributes:
        path: where it stands in the tree, as `jax.tree_util.keystr` writes it.
        shape: its shape.
        dtype: its type: ``"float32"``, ``"key<fry>"``.
        impl: for a typed key its generator: ``"threefry2x32"``; None otherwise.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    impl: str | None = None


def describe(tree: Any) -> list[Leaf]:
    """Returns the leaves of `tree`, in its order; no array is read.

    Example:
        >>> describe({"w": np.zeros((2, 3), np.float32), "nothing": None})
        [Leaf(path="['w']", shape=(2, 3), dtype='float32', impl=None)]
    """
    return [_leaf(path, value) for path, value in _flat(tree)]


def from_plain(plain: Any) -> list[Leaf] | None:
    """Returns leaves as JSON gave them back, or None if they are none."""
    try:
        return [
            Leaf(str(path), tuple(int(size) for size in shape), str(dtype), impl and str(impl))
            for path, shape, dtype, impl in plain
        ]
    except (TypeError, ValueError):
        return None


def difference(stored: Sequence[Leaf], expected: Sequence[Leaf]) -> str | None:
    """Returns one clause on the first leaf in which two states differ, or None."""
    here, wanted = ({leaf.path: leaf for leaf in leaves} for leaves in (stored, expected))
    for path, leaf in wanted.items():
        if path not in here:
            return f"leaf {path} {_kind(leaf)} is not stored"
        if _kind(here[path]) != _kind(leaf):
            return f"leaf {path} is stored as {_kind(here[path])}, expected {_kind(leaf)}"
    for path, leaf in here.items():
        if path not in wanted:
            return f"leaf {path} is stored as {_kind(leaf)}, expected no such leaf"
    # Arrays are stored by their number: fields that changed places must not change values.
    if [leaf[:3] for leaf in stored] != [leaf[:3] for leaf in expected]:
        return f"leaves are stored in another order, expected {', '.join(wanted)}"
    return None


def to_host(tree: Any) -> dict[str, np.ndarray]:
    """Returns the arrays to store by the number of their leaf; keys as their data."""
    values = {_name(i): _data(value) for i, (_, value) in enumerate(_flat(tree))}
    # Orbax refuses arrays without elements: their shape says everything.
    return {name: value for name, value in values.items() if value.size}


def placeholders(like: Any) -> dict[str, np.ndarray]:
    """Returns arrays of the shapes and types that `to_host` would give, without their memory."""
    shapes = {_name(i): _data_shape(value) for i, (_, value) in enumerate(_flat(like))}
    return {
        name: np.broadcast_to(np.zeros((), shape.dtype), shape.shape)
        for name, shape in shapes.items()
        if shape.size
    }


def from_host(arrays: Mapping[str, np.ndarray], leaves: Sequence[Leaf], like: Any) -> Any:
    """Returns `arrays` in the structure of `like`, where its leaves are: host or devices.

    Args:
        arrays: as `to_host` gives them.
        leaves: as `describe` gives them, for the generators of the keys.
        like: the structure, of arrays or `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: an array is not of the shape or type that `like` says.
    """
    impls = {leaf.path: leaf.impl for leaf in leaves}
    values = [
        _placed(path, arrays.get(_name(i)), impls.get(path), value)
        for i, (path, value) in enumerate(_flat(like))
    ]
    return jax.tree.unflatten(jax.tree.structure(like), values)


def _flat(tree: Any) -> list[tuple[str, Any]]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), value) for path, value in flat]


def _name(number: int) -> str:
    return f"{number:06d}"


def _leaf(path: str, value: Any) -> Leaf:
    if not isinstance(value, _ARRAYS):
        raise TypeError(f"leaf {path} = {value!r}: expected an array of JAX or NumPy")
    if not _is_key(value) and value.dtype.kind in "OSUMm":
        raise TypeError(f"leaf {path}: expected numbers, got an array of {value.dtype}")
    return Leaf(path, tuple(value.shape), str(value.dtype), _impl(value))


def _kind(leaf: Leaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _is_key(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def _impl(value: Any) -> str | None:
    typed = isinstance(value, jax.Array) and _is_key(value)
    return str(jax.random.key_impl(value)) if typed else None


def _data(value: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(value) if _is_key(value) else value)


def _data_shape(value: Any) -> jax.ShapeDtypeStruct:
    if _is_key(value):
        return jax.eval_shape(jax.random.key_data, value)
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _placed(path: str, data: np.ndarray | None, impl: str | None, like: Any) -> Any:
    expected = _data_shape(like)
    if data is None:
        data = np.zeros(expected.shape, expected.dtype)
    if (data.shape, data.dtype) != (expected.shape, expected.dtype):
        raise ValueError(f"leaf {path} holds {data.dtype}{list(data.shape)}")
    if isinstance(like, np.ndarray | np.generic):
        return data
    value = jax.random.wrap_key_data(jnp.asarray(data), impl=impl) if _is_key(like) else data
    # An array that was bound to no device stays so: jit may then place it as before.
    bound = not isinstance(like, jax.Array) or like.committed
    value = jax.device_put(value, like.sharding if bound else None, may_alias=False)
    if value.dtype != like.dtype:
        raise ValueError(f"leaf {path} holds {value.dtype}, expected {like.dtype}")
    return value
