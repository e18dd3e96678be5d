"""Checkpoints that survive a kill at any moment, and are refused when a byte of them is wrong."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpjax import _checks
from dpjax.train import leaves, manifest, storage
from dpjax.train.manifest import Refused

__all__ = ["CheckpointError", "Checkpoints", "Restored"]

_FORMAT = "dpjax checkpoint 1"
_FOLDER = re.compile(r"checkpoint-([0-9]{8,})-step-([0-9]+)")
_STATE = "state"


class CheckpointError(ValueError):
    """There are checkpoints, and none of them may be used; one sentence for each."""


class Restored(NamedTuple):
    """What a run goes on from.

    Attributes:
        step: the step it was saved at.
        state: the saved arrays, bit for bit, in the structure they were asked for.
        meta: the plain data saved with them.
        refused: one sentence for each newer checkpoint that could not be used.
    """

    step: int
    state: Any
    meta: dict[str, Any]
    refused: tuple[str, ...]

    def __repr__(self) -> str:
        """Shows neither the state nor what was saved with it: both may be private."""
        return f"Restored(step={self.step}, refused={self.refused})"


class _Entry(NamedTuple):
    serial: int  # the order of saving, which steps need not follow after a fall-back
    step: int
    path: Path


class Checkpoints:
    """The checkpoints of one run, in a folder of their own, written by one process at a time.

    A checkpoint is a folder with the arrays as Orbax writes them and, written last, a manifest with
    the size and sha256 of every file. Without its manifest it does not exist: the next `save`
    removes it. Nothing is pickled, and reading executes nothing.

    Args:
        folder: where they are; made at the first `save`.
        identity: what the run is, such as a hash of its configuration. A checkpoint with another
            identity is refused.
        keep: how many complete checkpoints stay; older ones go once a newer one is complete.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(Path(folder), identity="run 1")
        ...     checkpoints.save(3, {"w": np.ones(2)}, meta={"epsilon": 0.5})
        ...     restored = checkpoints.restore(like={"w": np.zeros(2)})
        >>> restored.step, restored.state["w"].tolist(), restored.meta
        (3, [1.0, 1.0], {'epsilon': 0.5})
    """

    def __init__(self, folder: Path, identity: str, keep: int = 2) -> None:
        """Checks the arguments; the folder is not touched."""
        if not isinstance(identity, str) or not identity:
            raise ValueError(f"identity = {identity!r}: expected a string that is not empty")
        self.folder = Path(folder).absolute()
        self.identity = identity
        self.keep = _checks.integer("keep", keep, at_least=1)

    def save(self, step: int, state: Any, meta: Mapping[str, Any]) -> None:
        """Writes one checkpoint: when this returns it is complete and on the disk.

        It is from now on the newest. Afterwards those beyond `keep` are removed, and those at this
        step or a later one: the run went back behind them.

        Args:
            step: the step the run is at.
            state: any pytree of JAX or NumPy arrays, typed keys among them.
            meta: plain data, as JSON can hold it; tuples come back as lists, keys as strings.

        Raises:
            OSError: a full disk, a folder that cannot be written: one sentence. The earlier
                checkpoints are as they were.
        """
        step = _checks.integer("step", step, at_least=0)
        content = {
            "format": _FORMAT,
            "identity": self.identity,
            "leaves": leaves.describe(state),
            "meta": dict(meta),
        }
        arrays = leaves.to_host(state)
        size = len(json.dumps(content)) + storage.size(arrays)
        with storage.one_sentence(f"checkpoint of step {step} was not written to {self.folder}"):
            entry = self._write(step, content, arrays, size)
        with storage.one_sentence(f"in {self.folder} old checkpoints were not removed"):
            self._remove_older(entry)

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, oldest first; no file is read."""
        return list(dict.fromkeys(entry.step for entry in self._complete()))

    def restore(self, like: Any, step: int | None = None) -> Restored | None:
        """Reads the newest checkpoint that is sound, or None if there is none at all.

        Args:
            like: the structure, shapes and types to expect, of arrays or `jax.ShapeDtypeStruct`.
                The arrays come back where those of `like` are: host, device or sharding.
            step: the step to read and no other; None for the newest.

        Raises:
            CheckpointError: there are checkpoints, and every one is refused, with the reasons.
        """
        found = self._complete()
        if not found:
            return None
        if step is not None:
            found = [entry for entry in found if entry.step == step]
        if not found:
            raise CheckpointError(f"step = {step}: expected one of {self.steps()}")
        expected = leaves.describe(like)
        refused: list[str] = []
        for entry in reversed(found):
            try:
                content = self._checked(entry, expected)
                state = _read(entry.path / _STATE, content["leaves"], like)
            except (Refused, OSError) as error:
                refused.append(f"checkpoint of step {entry.step} refused: {error} ({entry.path})")
            else:
                return Restored(entry.step, state, content["meta"], tuple(refused))
        raise CheckpointError("; ".join(refused))

    def _write(
        self, step: int, content: dict[str, Any], arrays: dict[str, np.ndarray], size: int
    ) -> _Entry:
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            manifest.sync(self.folder.parent)
        for entry in self._entries():
            if not manifest.is_sealed(entry.path):
                manifest.remove(entry.path)
        serial = max((entry.serial for entry in self._entries()), default=0) + 1
        path = self.folder / f"checkpoint-{serial:08d}-step-{step}"
        path.mkdir()
        try:
            manifest.sync(self.folder)
            storage.reserve(path / "reserved", size)
            storage.write_arrays(path / _STATE, arrays)
            manifest.seal(path, {**content, "folder": path.name})
        except BaseException:
            with suppress(OSError):  # the next save tries again; what went wrong is told first
                manifest.remove(path)
            raise
        return _Entry(serial, step, path)

    def _remove_older(self, newest: _Entry) -> None:
        older = [entry for entry in self._complete() if entry.serial != newest.serial]
        back = [entry for entry in older if entry.step >= newest.step]
        before = [entry for entry in older if entry.step < newest.step]
        for entry in [*back, *before[: max(0, len(before) + 1 - self.keep)]]:
            manifest.remove(entry.path)

    def _entries(self) -> list[_Entry]:
        if not self.folder.exists():
            return []
        with storage.one_sentence(f"checkpoints in {self.folder} were not listed"):
            paths = list(self.folder.iterdir())
        found = [(match, path) for path in paths if (match := _FOLDER.fullmatch(path.name))]
        return sorted(
            _Entry(int(match[1]), int(match[2]), path)
            for match, path in found
            if path.is_dir() and not path.is_symlink()  # a link leads to someone else's
        )

    def _complete(self) -> list[_Entry]:
        return [entry for entry in self._entries() if manifest.is_sealed(entry.path)]

    def _checked(self, entry: _Entry, expected: list[leaves.Leaf]) -> dict[str, Any]:
        """Returns the manifest of a checkpoint of this run, with sound files and `expected`."""
        content = manifest.read(entry.path)
        if content.get("format") != _FORMAT:
            raise Refused(f"its format is {content.get('format')!r}, expected {_FORMAT!r}")
        if content.get("identity") != self.identity:
            raise Refused(
                f"it is of another run, {content.get('identity')!r}, expected {self.identity!r}"
            )
        if content.get("folder") != entry.path.name:
            raise Refused(f"its folder was {content.get('folder')!r} when it was written")
        manifest.check_files(entry.path, content["files"])
        stored = leaves.from_plain(content.get("leaves"))
        if stored is None or not isinstance(content.get("meta"), dict):
            raise Refused("its manifest is not in the format of dpjax")
        if difference := leaves.difference(stored, expected):
            raise Refused(difference)
        content["leaves"] = stored
        return content


def _read(path: Path, stored: list[leaves.Leaf], like: Any) -> Any:
    arrays = storage.read_arrays(path, leaves.placeholders(like))
    try:
        return leaves.from_host(arrays, stored, like)
    except ValueError as error:
        raise Refused(str(error)) from error
