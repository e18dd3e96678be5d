"""The frozen first blocks of a network: their output is computed once and cached on disk."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax import _checks
from dpjax.models.encoder import EncoderNet
from dpjax.models.network import Network, build
from dpjax.models.parameters import Params, flat, nested, split

__all__ = ["CachedStates", "Halves", "cache_states", "cut", "first_trained_block"]

_FORMAT = "dpjax frozen states 1"
_BATCH_TOKENS = 4096
_BUCKETS = (16, 32, 64, 128, 256, 512)
DTYPES = ("float32", "float16")
_HOST = re.sub(r"\W", "-", platform.node()) or "unnamed"


def first_trained_block(params: Params, trainable: Sequence[str]) -> int:
    """Returns how many blocks come before the first trained parameter.

    Args:
        params: the parameters of an encoder.
        trainable: as in `split`.

    Raises:
        ValueError: if the embeddings are trained, so that nothing comes before them.

    Example:
        >>> layer = {"kernel": 0.0}
        >>> params = {"embeddings": layer, "blocks": {"0": layer, "1": layer}, "classifier": layer}
        >>> first_trained_block(params, ["blocks/1", "classifier"])
        1
    """
    trained = flat(split(params, trainable).trainable)
    if any(path.startswith("embeddings") for path in trained):
        raise ValueError(
            f"trainable = {list(trainable)}: expected frozen embeddings; with trained ones there "
            "is no frozen beginning to keep"
        )
    found = [re.match(r"blocks/(\d+)/", path) for path in trained]
    depths = [int(match[1]) for match in found if match]
    return min(depths, default=len(params["blocks"]))


class Halves(NamedTuple):
    """The two parts of a network cut at a block, each with its parameters.

    Attributes:
        prefix: the network before the block.
        prefix_params: its parameters.
        suffix: the network from the block on.
        suffix_params: its parameters.
    """

    prefix: Network
    prefix_params: Params
    suffix: Network
    suffix_params: Params

    def joined(self, suffix_params: chex.ArrayTree) -> Params:
        """Returns the whole network's parameters, with these parameters for the second part.

        Args:
            suffix_params: the second part's parameters, such as after training.
        """
        return nested({**flat(self.prefix_params), **flat(suffix_params)})


def cut(network: Network, params: Params, block: int) -> Halves:
    """Cuts an encoder before a block.

    With ``halves = cut(...)`` and ``states = halves.prefix.apply(halves.prefix_params, x)``,
    ``halves.suffix.apply(halves.suffix_params, states)`` equals the output of the whole network.
    Both parts keep the names of their parameters.

    Args:
        network: an encoder from `dpjax.models.build` or `from_pretrained`.
        params: its parameters.
        block: the first block of the second part; the number of blocks leaves it only the head.

    Returns:
        The first part and its parameters, and the second part and its parameters.

    Raises:
        ValueError: if the network is not an encoder, has LoRA updates, or has fewer blocks.

    Example:
        >>> sizes = {"layers": 2, "width": 4, "heads": 2, "hidden": 8, "positions": 8}
        >>> network = build("bert", (6,), 2, 11, separator=3, **sizes)
        >>> params = jax.eval_shape(network.init, jax.random.key(0))  # shapes are enough to cut
        >>> halves = cut(network, params, block=1)
        >>> list(halves.prefix_params["blocks"]), list(halves.suffix_params["blocks"])
        (['0'], ['1'])
    """
    if not isinstance(jax.eval_shape(network.module, params), EncoderNet):
        raise ValueError(f"network = {network.name}: expected an encoder; only those can be cut")
    if network.lora is not None:
        raise ValueError("network: expected one without LoRA; cut it first, then add the updates")
    depth = len(params["blocks"])
    if _checks.integer("block", block, at_least=0) > depth:
        raise ValueError(f"block = {block}: expected at most the {depth} blocks there are")
    width = params["classifier"]["kernel"].shape[0]
    options = dict(network.options)
    first = build(network.name, network.shape, network.classes, stop=block, **options)
    second = build(network.name, (*network.shape, width), network.classes, start=block, **options)
    parts = []
    for part in (first, second):
        names = flat(jax.eval_shape(part.init, jax.random.key(0)))
        leaves = flat(params)
        parts.append(nested({path: leaves[path] for path in names}))
    return Halves(first, parts[0], second, parts[1])


@dataclass(frozen=True, eq=False)
class CachedStates:
    """The states of examples before a block, read from disk row by row.

    Only real tokens are stored. Rows are padded with zeros when they are read, and the network's
    second part treats zeros as padding. Like every data source, it has a length and takes lists of
    rows.

    Attributes:
        shape: the shape of all states, (examples, length, width).
        dtype: the dtype on disk; states are read as float32.
        file: the file that holds them.
        tokens: (tokens, width), all real tokens of all examples, one example after another.
        starts: (examples + 1,), where each example begins in `tokens`; the last is their number.
    """

    shape: tuple[int, int, int]
    dtype: np.dtype[np.floating]
    file: Path
    tokens: np.ndarray = field(repr=False)
    starts: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        """Returns the number of examples."""
        return self.shape[0]

    def __getitem__(self, row: int) -> np.ndarray:
        """Returns one example's states, (length, width)."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns several examples' states, (rows, length, width)."""
        out = np.zeros((len(rows), *self.shape[1:]), np.float32)
        for place, row in enumerate(rows):
            start, stop = self.starts[row], self.starts[row + 1]
            out[place, : stop - start] = self.tokens[start:stop]
        return out

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Returns the states of all examples, in memory."""
        del copy  # reading from disk always makes a new array
        return self.__getitems__(np.arange(len(self))).astype(dtype or np.float32, copy=False)

    @property
    def nbytes(self) -> int:
        """The size of the states on disk."""
        return self.tokens.nbytes


def cache_states(
    prefix: Network,
    params: chex.ArrayTree,
    tokens: np.ndarray,
    directory: str | Path,
    *,
    dtype: str = "float32",
    limit: float = 10e9,
) -> CachedStates:
    """Computes the states of all examples once and caches them on disk.

    The file name is a hash of the parameters, the tokens, the network and the precision, so nothing
    is computed twice. Texts of similar length are computed together. The cache is as private as the
    texts themselves.

    Args:
        prefix: the first part of a network, from `cut`.
        params: its parameters.
        tokens: (n, length) of int32.
        directory: the folder of the cache.
        dtype: "float32", or "float16" for half the space. Rounded states make it a different
            experiment from one without a cache.
        limit: the largest file, in bytes.

    Returns:
        The states, on disk.

    Raises:
        ValueError: if the file would be larger than `limit`, a token is not in the network's
            vocabulary, or a state is not finite.

    Example:
        >>> import tempfile
        >>> sizes = {"layers": 1, "width": 4, "heads": 2, "hidden": 8, "positions": 8}
        >>> network = build("bert", (6,), 2, 11, separator=3, **sizes)
        >>> halves = cut(network, network.init(jax.random.key(0)), block=0)
        >>> tokens = np.array([[1, 5, 3, 0, 0, 0], [1, 7, 8, 9, 3, 0]], np.int32)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     states = cache_states(halves.prefix, halves.prefix_params, tokens, folder)
        >>> states.shape, len(states.tokens)  # of the 12 tokens, those that are no padding
        ((2, 6, 4), 8)
    """
    _checks.choice("dtype", dtype, DTYPES)
    if tokens.ndim != 2 or tokens.shape[1:] != prefix.shape:
        raise ValueError(f"tokens of shape {tokens.shape}: expected (n, {prefix.shape[0]})")
    vocabulary = prefix.options["vocabulary"]
    for token in (tokens.min(initial=0), tokens.max(initial=0)):
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"tokens: {token}: expected 0 to {vocabulary - 1}, the network's vocabulary"
            )
    padding = prefix.options.get("padding", 0)
    lengths = _lengths(tokens, padding)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    width = jax.eval_shape(prefix.apply, params, tokens[0]).shape[1]
    shape = (len(tokens), tokens.shape[1], width)
    size = int(starts[-1]) * width * np.dtype(dtype).itemsize
    if size > limit:
        raise ValueError(
            f"limit = {limit:.3g} bytes: expected at least {size:.3g}, what {starts[-1]} tokens of "
            f"{width} features take in {dtype}; shorten the texts, cut the network later, or store "
            "them as float16"
        )
    name = _mark(prefix, params, tokens, dtype)
    file = Path(directory) / f"{name}.npy"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(file.parent)
        unfinished = file.with_suffix(f".{_HOST}.{os.getpid()}.part")
        try:
            stored = np.lib.format.open_memmap(
                unfinished, mode="w+", dtype=dtype, shape=(int(starts[-1]), width)
            )
            _compute(prefix, params, tokens, lengths, starts, stored)
            stored.flush()
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    states = np.load(file, mmap_mode="r")
    if states.shape != (starts[-1], width):
        raise ValueError(f"{file}: holds {states.shape}: expected {(int(starts[-1]), width)}")
    return CachedStates(shape, states.dtype, file, states, starts)


def _remove_abandoned(directory: Path) -> None:
    """Removes the unfinished files of processes on this machine that no longer run."""
    for file in directory.glob(f"*.{_HOST}.*.part"):
        process = int(file.name.split(".")[-2])
        if not _runs(process):
            file.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as another user
        return True
    return True


def _compute(
    prefix: Network,
    params: chex.ArrayTree,
    tokens: np.ndarray,
    lengths: np.ndarray,
    starts: np.ndarray,
    stored: np.ndarray,
) -> None:
    """Fills the file bucket by bucket, with one compiled program per length."""
    full = tokens.shape[1]
    sizes = [size for size in _BUCKETS if size < full] + [full]
    options = dict(prefix.options)
    shortest = 0
    for size in sizes:
        rows = np.flatnonzero((lengths > shortest) & (lengths <= size))
        shortest = size
        if not len(rows):
            continue
        network = build(prefix.name, (size,), prefix.classes, **options)
        states_of = jax.jit(jax.vmap(network.apply, in_axes=(None, 0)))
        batch = max(1, _BATCH_TOKENS // size)
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            filled = np.resize(some, batch)  # repeats rows to keep one shape; drops the copies
            states = np.asarray(states_of(params, jnp.asarray(tokens[filled, :size])))
            for row, own in zip(some, states, strict=False):
                real = own[: lengths[row]]
                if not np.all(np.isfinite(real)) or not np.all(np.any(real != 0, axis=1)):
                    raise ValueError(f"example {row}: expected finite states that are not all zero")
                stored[starts[row] : starts[row + 1]] = real


def _lengths(tokens: np.ndarray, padding: int) -> np.ndarray:
    real = tokens != padding
    lengths = real.sum(axis=1)
    if not np.array_equal(real, np.arange(tokens.shape[1]) < lengths[:, None]):
        raise ValueError("tokens: expected padding after a text only, not within it")
    return lengths


def _mark(prefix: Network, params: chex.ArrayTree, tokens: np.ndarray, dtype: str) -> str:
    """Returns a hash of everything that the states depend on."""
    digest = hashlib.sha256()
    described = {"format": _FORMAT, "network": prefix.name, "dtype": dtype}
    digest.update(json.dumps({**described, **prefix.options}, sort_keys=True).encode())
    arrays = {**{path: np.asarray(leaf) for path, leaf in flat(params).items()}, "tokens": tokens}
    for path in sorted(arrays):
        array = np.ascontiguousarray(arrays[path])
        digest.update(f"{path} {array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
