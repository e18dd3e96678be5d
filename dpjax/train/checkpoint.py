"""Orbax checkpoints that survive a kill at any moment; damaged ones are refused.

A state is a pytree of global arrays: each process writes and reads its own shards, and a state may
be restored to devices other than those it was saved from. Orbax writes in the background; once it
has committed a checkpoint, a manifest with the hash of every file seals it. A checkpoint without a
manifest is treated as if it did not exist.
"""

import errno
import json
import logging
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from dpjax import _checks, _files
from dpjax._files import Refused, one_disk_error

__all__ = ["CheckpointError", "Checkpoints", "Restored", "describe", "difference"]

_FORMAT = "dpjax checkpoint 3"
_FOLDER = re.compile(r"step_([0-9]{8,})")
_UNFINISHED = re.compile(r"step_[0-9]{8,}\.orbax-checkpoint-tmp.*")
_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


class CheckpointError(ValueError):
    """Checkpoints exist but none of them can be used; the message gives a reason for each."""


class Restored(NamedTuple):
    """What a run resumes from.

    Attributes:
        step: the step it was saved at.
        state: the saved arrays, bit for bit, in the structure they were asked for.
        meta: the plain data saved with them.
        refused: one sentence for each newer checkpoint that could not be used.
    """

    step: int
    state: chex.ArrayTree
    meta: dict[str, Any]
    refused: tuple[str, ...]

    def __repr__(self) -> str:
        """Shows neither the state nor the metadata: both may be private."""
        return f"Restored(step={self.step}, refused={self.refused})"


class Checkpoints:
    """The checkpoints of one run, in a dedicated folder.

    Only one process may write at a time, unless JAX coordinates several: then all of them call
    `save`, `restore` and `wait`, on a shared file system. Nothing is pickled, and reading executes
    no code.

    Args:
        folder: the folder; created by the first `save`.
        identity: identifies the run, such as a hash of its configuration. A checkpoint with another
            identity is refused.
        keep: the number of complete checkpoints to keep, at least 2: the older one is the fallback
            until the newer one is sealed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(Path(folder), identity="run 1")
        ...     checkpoints.save(3, {"w": jnp.ones(2)}, meta={"epsilon": 0.5})
        ...     checkpoints.wait()
        ...     restored = checkpoints.restore(like={"w": jnp.zeros(2)})
        >>> restored.step, restored.state["w"].tolist(), restored.meta
        (3, [1.0, 1.0], {'epsilon': 0.5})
    """

    def __init__(self, folder: Path, identity: str, keep: int = 2) -> None:
        """Checks the arguments; the folder is not touched."""
        if not isinstance(identity, str) or not identity:
            raise ValueError(f"identity = {identity!r}: expected a string that is not empty")
        self.folder = Path(folder).absolute()
        self.identity = identity
        self.keep = _checks.integer("keep", keep, at_least=2)
        self._manager: ocp.CheckpointManager | None = None
        self._sealing: threading.Thread | None = None
        self._failure: OSError | None = None
        self._base = -1  # the last step restored or saved; newer checkpoints are obsolete

    def save(self, step: int, state: chex.ArrayTree, meta: Mapping[str, object]) -> None:
        """Starts writing a checkpoint; the state may change as soon as this returns.

        It first waits for the previous checkpoint. The first call removes checkpoints that are
        incomplete, newer than the one that was restored or, if none was, not older than this one.

        Args:
            step: the current step, above those saved before.
            state: any pytree of JAX or NumPy arrays, which may include typed keys.
            meta: JSON-serialisable data; tuples come back as lists, and keys as strings.

        Raises:
            OSError: if the disk is full or the folder cannot be written to; one sentence, raised
                here or by the next `save` or `wait`. Earlier checkpoints are not affected.
        """
        step = _checks.integer("step", step, at_least=0)
        content = {
            "format": _FORMAT,
            "identity": self.identity,
            "leaves": describe(state),
            "meta": dict(meta),
        }
        size = len(json.dumps(content)) + _size(state)
        self.wait()
        with one_disk_error(f"checkpoint of step {step} was not written to {self.folder}"):
            if self._manager is None:
                self._manager = self._opened(step)
            if jax.process_index() == 0:
                _reserve(self.folder / "reserved", size)
            self._manager.save(step, args=ocp.args.StandardSave(_stored(state)), force=True)
        self._base = step
        self._sealing = threading.Thread(target=self._seal, args=(step, content))
        self._sealing.start()

    def wait(self) -> None:
        """Waits until the last checkpoint is complete and on disk.

        Raises:
            OSError: if the last checkpoint could not be written.
        """
        if self._sealing is not None:
            self._sealing.join()
            self._sealing = None
        failure, self._failure = self._failure, None
        if failure is not None:
            self._manager = None
            raise failure

    def close(self) -> None:
        """Waits, and stops Orbax's threads; a later `save` starts them again."""
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, oldest first; reads no files."""
        if self._sealing is not None:
            self._sealing.join()
        return [step for step, path in self._entries() if _files.is_sealed(path)]

    def restore(self, like: chex.ArrayTree, step: int | None = None) -> Restored | None:
        """Reads the newest sound checkpoint, or returns None if there are no checkpoints at all.

        Args:
            like: the expected structure, shapes and dtypes, as arrays or `jax.ShapeDtypeStruct`.
                The arrays are restored to where those of `like` are: host, device or sharding.
            step: the only step to try; None for the newest.

        Returns:
            The checkpoint, with the reasons why newer ones were refused; None if there is none.

        Raises:
            CheckpointError: if there are checkpoints but all are refused; gives the reasons.
        """
        found = self.steps()
        if not found:
            return None
        if step is not None and step not in found:
            raise CheckpointError(f"step = {step}: expected one of {found}")
        expected = describe(like)
        refused: list[str] = []
        for each in reversed(found) if step is None else [step]:
            path = self._path(each)
            try:
                content = self._checked(path, expected)
                state = _read(path, like)
            except (Refused, OSError) as error:
                refused.append(f"checkpoint of step {each} refused: {error} ({path})")
            else:
                self._base = each
                return Restored(each, state, content["meta"], tuple(refused))
        raise CheckpointError("; ".join(refused))

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:08d}"

    def _opened(self, step: int) -> ocp.CheckpointManager:
        """Removes unfinished and obsolete checkpoints and returns the manager that writes."""
        if jax.process_index() == 0:
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                _files.sync(self.folder.parent)
            for path in self.folder.iterdir():
                if _UNFINISHED.fullmatch(path.name):
                    _files.remove_sealed(path)
            behind = step - 1 if self._base < 0 else self._base
            for each, path in self._entries():
                if each > behind or not _files.is_sealed(path):
                    _files.remove_sealed(path)
        _mute_orbax()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self.keep, step_prefix="step", step_format_fixed_length=8, create=False
        )
        if jax.process_count() > 1:
            ocp.multihost.sync_global_processes("dpjax checkpoints were tidied")
        return ocp.CheckpointManager(self.folder, options=options)

    def _seal(self, step: int, content: Mapping[str, object]) -> None:
        """Waits until Orbax has committed a checkpoint, then seals it; runs in a thread."""
        try:
            with one_disk_error(f"checkpoint of step {step} was not written to {self.folder}"):
                assert self._manager is not None
                self._manager.wait_until_finished()
                if jax.process_index() == 0:
                    path = self._path(step)
                    _files.seal(path, {**content, "folder": path.name})
        except BaseException as error:  # of any kind: `wait` raises it
            self._failure = error if isinstance(error, OSError) else OSError(str(error))
            with suppress(OSError):
                for path in self.folder.glob(f"step_{step:08d}*"):
                    _files.remove_sealed(path)

    def _entries(self) -> list[tuple[int, Path]]:
        if not self.folder.exists():
            return []
        with one_disk_error(f"checkpoints in {self.folder} were not listed"):
            paths = list(self.folder.iterdir())
        found = [(match, path) for path in paths if (match := _FOLDER.fullmatch(path.name))]
        return sorted(
            (int(match[1]), path)
            for match, path in found
            if path.is_dir() and not path.is_symlink()  # a link may lead outside this run
        )

    def _checked(self, path: Path, expected: Mapping[str, str]) -> dict[str, Any]:
        """Returns the manifest of a checkpoint after checking run, files and expected leaves."""
        content = _files.read_manifest(path)
        if content.get("format") != _FORMAT:
            raise Refused(f"its format is {content.get('format')!r}, expected {_FORMAT!r}")
        if content.get("identity") != self.identity:
            raise Refused(
                f"it is of another run, {content.get('identity')!r}, expected {self.identity!r}"
            )
        if content.get("folder") != path.name:
            raise Refused(f"its folder was {content.get('folder')!r} when it was written")
        _files.check_files(path, content["files"])
        if not all(isinstance(content.get(name), dict) for name in ("leaves", "meta")):
            raise Refused("its manifest is not in the format of dpjax")
        if why := difference(content["leaves"], expected):
            raise Refused(why)
        return content


def describe(tree: chex.ArrayTree) -> dict[str, str]:
    """Returns the dtype and shape of every leaf by its path; reads no arrays.

    Example:
        >>> describe({"w": np.zeros((2, 3), np.float32), "nothing": None})
        {"['w']": 'float32[2, 3]'}
    """
    found = {}
    for path, value in _flat(tree):
        if not isinstance(value, _ARRAYS):
            raise TypeError(f"leaf {path} = {value!r}: expected an array of JAX or NumPy")
        if not _is_key(value) and value.dtype.kind in "OSUMm":
            raise TypeError(f"leaf {path}: expected numbers, got an array of {value.dtype}")
        found[path] = f"{value.dtype}{list(value.shape)}"
    return found


def difference(stored: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    """Returns one clause on the first leaf in which two states differ, or None if none does."""
    for path, kind in expected.items():
        if path not in stored:
            return f"leaf {path} {kind} is not stored"
        if stored[path] != kind:
            return f"leaf {path} is stored as {stored[path]}, expected {kind}"
    for path, kind in stored.items():
        if path not in expected:
            return f"leaf {path} is stored as {kind}, expected no such leaf"
    return None


def _flat(tree: chex.ArrayTree) -> list[tuple[str, Any]]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), value) for path, value in flat]


def _is_key(value: chex.Array | jax.ShapeDtypeStruct) -> bool:
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def _stored(tree: chex.ArrayTree) -> dict[str, chex.Array | jax.ShapeDtypeStruct]:
    """Returns the arrays by the rank of their path, without empty ones, which Orbax refuses.

    A tree of only empty arrays is stored as a single zero, because Orbax refuses empty trees too.
    """
    ranked = enumerate(value for _, value in sorted(_flat(tree), key=lambda pair: pair[0]))
    found = {f"{i:06d}": value for i, value in ranked if value.size}
    return found or {"empty": np.zeros(1)}


def _size(tree: chex.ArrayTree) -> int:
    """Returns an upper bound on the bytes of a state, with a margin for Orbax's own files."""
    leaves = [value for _, value in _flat(tree)]
    return sum(value.size * max(8, value.dtype.itemsize) for value in leaves) + 2**17


def _read(path: Path, like: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the arrays of a checkpoint, with the structure and placement of `like`."""
    wanted = jax.tree.map(_placed, like)
    _mute_orbax()
    try:
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as orbax:
            arrays = orbax.restore(path / "default", args=ocp.args.StandardRestore(_stored(wanted)))
    except Exception as error:  # Orbax has no common base class for read errors
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"Orbax cannot read folder default: {line}") from error
    leaves = _flat(wanted)
    ranks = {name: i for i, name in enumerate(sorted(name for name, _ in leaves))}
    values = []
    for name, leaf in leaves:
        value = arrays[f"{ranks[name]:06d}"] if leaf.size else _without_elements(leaf)
        if (value.shape, value.dtype) != (leaf.shape, leaf.dtype):
            raise Refused(f"leaf {name} holds {value.dtype}{list(value.shape)}")
        values.append(value)
    return jax.tree.unflatten(jax.tree.structure(like), values)


def _placed(leaf: chex.Array | jax.ShapeDtypeStruct) -> np.ndarray | jax.ShapeDtypeStruct:
    """Returns what Orbax takes for a leaf: a host array, or a shape with its sharding."""
    if isinstance(leaf, np.ndarray | np.generic):
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    place = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def _without_elements(leaf: np.ndarray | jax.ShapeDtypeStruct) -> chex.Array:
    if isinstance(leaf, np.ndarray):
        return np.zeros(leaf.shape, leaf.dtype)
    if _is_key(leaf):
        return jax.random.split(jax.random.key(0), leaf.shape)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _reserve(path: Path, size: int) -> None:
    """Finds out whether the disk is full before Orbax does, whose threads would each complain.

    Args:
        path: a file that takes up the space for a moment.
        size: the number of bytes needed.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                path.unlink()
                raise
    path.unlink()


def _mute_orbax() -> None:
    """Silences Orbax's log: failures are raised instead."""
    log = logging.getLogger("absl")
    if _of_others not in log.filters:
        log.addFilter(_of_others)


def _of_others(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname
