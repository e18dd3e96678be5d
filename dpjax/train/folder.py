"""A run on disk: its identity, what may be published, what may not, and how to resume it."""

import csv
import dataclasses
import fcntl
import hashlib
import io
import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import chex
import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np

import dpjax
from dpjax import _checks, _json, noise
from dpjax._files import append, refuse_links, write_atomically
from dpjax._toml import Table
from dpjax.accounting import Ledger
from dpjax.privatize import Released
from dpjax.train.config import Experiment

__all__ = [
    "NOT_PRIVATE",
    "RunFolder",
    "RunIdentity",
    "differences",
    "environment",
    "member_key",
    "next_lineage",
    "root_key",
]

NOT_PRIVATE = (
    "NOT PRIVATE: computed from the training examples without noise. For research on the method; "
    "publishing it, or a plot of it, is outside the guarantee."
)

_TIMING = (
    "NOT PRIVATE: how long steps take depends on the sizes of their batches. Publishing it is "
    "outside the guarantee."
)

_RESULTS = ("released.jsonl", "diagnostics.jsonl", "steps.csv", "ledger.json", "statement.md")
_EVALUATED = ("step", "epoch", "accuracy", "epsilon")
_SCORES = ("accuracy", "loss")
_STEP_COLUMNS = ("step", *Released._fields)

# The fields of /proc/cpuinfo with a processor's model and instructions, on x86 and on ARM.
_CPU_FIELDS = (
    *("vendor_id", "cpu family", "model", "flags"),
    *("CPU implementer", "CPU part", "CPU variant", "Features"),
)
_HOST_DEVICES = "--xla_force_host_platform_device_count"


def environment() -> dict[str, str | bool]:
    """Returns everything on this machine that affects the bits drawn or the numbers computed.

    A run that resumes from a checkpoint may repeat steps that it has already released. In the same
    environment, it repeats them bit for bit. In another one, it might put other noise on the same
    sum, or the same noise on another sum, and both releases together would cost more than the
    ledger says. The kind of device, XLA's flags and the precision of matrix products change at
    least the last bits of a gradient; JAX's two other flags change what augmentation draws.
    """
    flags: Any = jax.config  # its attributes are created at run time
    return {
        "dpjax": dpjax.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "platform": jax.default_backend(),
        "device": _device(),
        "xla_flags": _xla_flags(),
        "matmul_precision": flags.jax_default_matmul_precision or "default",
        "noise": noise.DEFINITION,
        "threefry_partitionable": bool(flags.jax_threefry_partitionable),
        "x64": bool(flags.jax_enable_x64),
    }


def _device() -> str:
    """Returns the kind of device; on a CPU, the model and instructions that XLA compiles for."""
    device = jax.devices()[0]
    return f"cpu {_cpu()}" if device.platform == "cpu" else str(device.device_kind)


@cache
def _cpu() -> str:
    """Returns a short name of this CPU's model and instruction set."""
    file = Path("/proc/cpuinfo")
    first = file.read_text(encoding="utf-8").split("\n\n")[0] if file.exists() else ""
    fields = dict(line.split(":", 1) for line in first.splitlines() if ":" in line)
    told = {name.strip(): value.split() for name, value in fields.items()}
    kept = {name: told[name] for name in _CPU_FIELDS if name in told}
    plain = json.dumps(kept)
    return f"{platform.machine()} {hashlib.sha256(plain.encode()).hexdigest()[:12]}"


def _xla_flags() -> str:
    """Returns XLA's flags except the number of host devices, which does not affect batches."""
    words = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(word for word in words if not word.startswith(_HOST_DEVICES))


def differences(old: Table, new: Table) -> str:
    """Describes the values in which two tables differ, by their paths in nested tables.

    >>> differences({"jax": "0.8", "x64": False}, {"jax": "0.9", "x64": False})
    "jax was '0.8' and is '0.9'"
    """
    found = []
    for name in [*old, *(name for name in new if name not in old)]:
        was, now = old.get(name), new.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping) and "." not in name:
            inner = [{f"{name}.{key}": table[key] for key in sorted(table)} for table in (was, now)]
            found += [text] if (text := differences(*inner)) else []
        elif was != now:
            found.append(f"{name} was {was!r} and is {now!r}")
    return "; ".join(found)


@dataclass(frozen=True)
class RunIdentity:
    """Identifies the run that a folder holds.

    The experiment's identity (`Experiment.identity`) describes what was asked for, and results are
    stored under it. The run's identity adds its keys and the environment that draws from them.

    Args:
        lineage: what is folded into its keys; see `member_key`.
        member: the index of this run among several of the same experiment.
        members: how many were begun together.
        varied: the paths of the numbers in which these differ.
        environment: what affects the bits it draws; see `environment`.
        rerounding: by how much its noise is enlarged for the rounding of sums, as a fraction; None
            before its first step.
    """

    lineage: str
    member: int = 0
    members: int = 1
    varied: tuple[str, ...] = ()
    environment: Mapping[str, str | bool] = field(default_factory=environment)
    rerounding: float | None = None

    def __post_init__(self) -> None:
        """Checks the fields; the lineage names a folder, which must lie inside the run's."""
        if not isinstance(self.lineage, str) or not re.fullmatch("[0-9a-f]{64}", self.lineage):
            raise ValueError(f"lineage = {self.lineage!r}: expected a sha256 in hexadecimal digits")
        _checks.integer("member", self.member, at_least=0)
        _checks.integer("members", self.members, at_least=1)
        if not all(isinstance(path, str) for path in self.varied):
            raise TypeError(f"varied = {self.varied!r}: expected names")
        kinds = [
            {name: type(value) for name, value in table.items()}
            for table in (self.environment, environment())
        ]
        if kinds[0] != kinds[1]:
            raise TypeError(f"environment = {self.environment!r}: expected {', '.join(kinds[1])}")
        if self.rerounding is not None:
            _checks.finite("rerounding", self.rerounding)

    @property
    def mark(self) -> str:
        """The identity that its checkpoints carry; checkpoints with any other are refused."""
        plain = json.dumps(self.environment, sort_keys=True)
        made = hashlib.sha256(plain.encode()).hexdigest()
        return f"{self.lineage}/{self.member}/{made[:16]}"

    def to_json(self) -> str:
        """Returns the identity as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Reads what `to_json` wrote; anything else raises."""
        if not isinstance(plain, Mapping) or not isinstance(plain.get("environment"), Mapping):
            raise TypeError("expected a table with a table 'environment'")
        return cls(**{**plain, "varied": tuple(plain.get("varied", ()))})


def root_key(seed: int | None = None) -> jax.Array:
    """Returns a threefry key, from a seed or from 64 bits of the operating system's entropy.

    A seed is for reproduction only: anyone who knows it can subtract the noise.

    Args:
        seed: below 2^32; None for a key that nobody knows.

    Example:
        >>> jax.random.key_data(root_key(7)).tolist()
        [0, 7]
        >>> bool(root_key() == root_key())
        False
    """
    if seed is None:
        words = np.frombuffer(os.urandom(8), np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    return jax.random.key(seed, impl="threefry2x32")


def member_key(root: jax.Array, lineage: str, member: int) -> jax.Array:
    """Returns the key of one run, from which its streams (sampling, noise, ...) are folded.

    The key depends on the experiment. Otherwise, two experiments with one seed would put the same
    noise on different signals, and the difference would contain no noise. They would also draw the
    same batches, and together cost more than runs that draw independently, which is what
    "all published" assumes.

    Args:
        root: the root key.
        lineage: the experiment's identity; after a change to it, `next_lineage`.
        member: the index of this run among several of the same experiment.

    Example:
        >>> keys = [member_key(root_key(7), "ab" * 32, member) for member in (0, 1)]
        >>> bool(keys[0] == keys[1])
        False
    """
    key = root
    for word in np.frombuffer(bytes.fromhex(lineage), np.uint32)[:4]:
        key = noise.fold(key, word)
    return noise.fold(key, member)


def next_lineage(lineage: str, identity: str, step: int) -> str:
    """Returns the lineage of a run that resumes from `step` as another experiment.

    It is new even if that experiment was run before: returning to an old configuration does not
    reuse its noise.

    >>> a, b = "00" * 32, "11" * 32
    >>> next_lineage(next_lineage(a, b, 5), a, 9) not in (a, b)
    True
    """
    return hashlib.sha256(f"{lineage} {identity} {step}".encode()).hexdigest()


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    ``config.toml`` holds the resolved experiment; ``run.json`` the run's identity;
    ``released.jsonl`` a line per evaluation; ``steps.csv`` the public numbers of at most 10,000
    steps; ``ledger.json`` what was released, written beforehand; ``statement.md`` the same in
    words; ``diagnostics.jsonl`` non-private numbers, if asked for; ``checkpoints/`` states with
    keys, which are private. Like the diagnostics, ``timing.json`` (how long the run took) and the
    profiler's ``trace/`` have no privacy guarantee.

    Args:
        path: the folder.

    Example:
        >>> RunFolder(Path("not-there")).exists
        False
    """

    path: Path

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "run.json").exists()

    @property
    def config_file(self) -> Path:
        """The file with the resolved experiment."""
        return self.path / "config.toml"

    def checkpoints(self, lineage: str) -> Path:
        """Returns the folder of a lineage's checkpoints."""
        return self.path / "checkpoints" / lineage[:16]

    def create(self) -> None:
        """Makes the folder; refuses one that already holds a run, or a part of one (an export)."""
        if self.exists:
            raise ValueError(
                f"{self.path} holds a run: expected resume=True to resume it, or another folder"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: expected a new folder")
        for name in _RESULTS:
            if (self.path / name).exists():
                raise ValueError(f"{self.path} holds a {name} of another: expected a new folder")
        self.path.mkdir(parents=True, exist_ok=True)
        checkpoints = self.path / "checkpoints"
        checkpoints.mkdir(mode=0o700, exist_ok=True)  # they hold the keys

    def commit(self, identity: RunIdentity) -> None:
        """Writes the run's identity, the last step of beginning a run."""
        write_atomically(self.path / "run.json", identity.to_json() + "\n")

    def change(self, identity: RunIdentity, experiment: Experiment) -> None:
        """Makes the run another experiment, atomically: a kill leaves either the old or the new."""
        write_atomically(self._new_config(identity), experiment.to_toml())
        self.commit(identity)
        self.settle()

    def settle(self) -> None:
        """Completes a change that was interrupted after it took effect."""
        new = self._new_config(self.identity())
        if new.exists():
            new.replace(self.config_file)

    def identity(self) -> RunIdentity:
        """Reads the run's identity."""
        if not self.exists:
            raise FileNotFoundError(f"{self.path} holds no run: expected a folder with run.json")
        try:
            plain = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
            return RunIdentity.from_plain(plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{self.path}/run.json: expected what dpjax wrote: {error}") from error

    def write_config(self, experiment: Experiment) -> None:
        """Writes the resolved experiment."""
        write_atomically(self.config_file, experiment.to_toml())

    def read_config(self) -> Experiment:
        """Reads the resolved experiment."""
        new = self._new_config(self.identity()) if self.exists else self.config_file
        file = new if new.exists() else self.config_file
        if not file.exists():
            raise FileNotFoundError(f"{self.path} holds no run: expected a folder with config.toml")
        return Experiment.from_file(file)

    def _new_config(self, identity: RunIdentity) -> Path:
        """Where a new experiment is kept until run.json says that the change has taken effect."""
        return self.checkpoints(identity.lineage) / "config.toml"

    def write_ledger(self, ledger: Ledger) -> None:
        """Writes the ledger; called before the release that it records."""
        write_atomically(self.path / "ledger.json", ledger.to_json() + "\n")

    def read_ledger(self) -> Ledger | None:
        """Reads the ledger; None if nothing is accounted for."""
        file = self.path / "ledger.json"
        return Ledger.from_json(file.read_text(encoding="utf-8")) if file.exists() else None

    def write_statement(self, text: str) -> None:
        """Writes the privacy statement."""
        write_atomically(self.path / "statement.md", text)

    def remove_statement(self) -> None:
        """Removes the statement, which is about to be out of date."""
        (self.path / "statement.md").unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks out other processes while this one trains here; a kill releases the lock."""
        refuse_links(self.path)
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{self.path}: another process is training here") from error
            except OSError as error:
                raise OSError(
                    f"{self.path}/lock: {error.strerror}: expected a file system that can lock "
                    "files, so that no two processes train here"
                ) from error
            yield

    def add_released(self, row: Table) -> None:
        """Appends the public numbers of an evaluation."""
        append(self.path / "released.jsonl", _json.dumps(row) + "\n")

    def released(self) -> list[dict[str, Any]]:
        """Returns the evaluations; raises if a line lacks a number that all evaluations have.

        JSON has no NaN: an accuracy or loss that is not a number is null in the file and NaN here.
        Other nulls are None: for instance, there is no epsilon without a guarantee.
        """
        file = self.path / "released.jsonl"
        rows = _json_lines(file)
        for name in _EVALUATED:
            if not all(isinstance(row.get(name, ""), int | float | None) for row in rows):
                raise ValueError(f"{file}: expected a number {name!r} in every line")
        return [
            {**row, **{name: math.nan for name in _SCORES if row.get(name, "") is None}}
            for row in rows
        ]

    def add_diagnostics(self, row: Table) -> None:
        """Appends non-private numbers, labelled as such."""
        labelled = {"label": NOT_PRIVATE, **row}
        append(self.path / "diagnostics.jsonl", _json.dumps(labelled) + "\n")

    def diagnostics(self) -> list[dict[str, Any]]:
        """Returns the non-private numbers."""
        return _json_lines(self.path / "diagnostics.jsonl")

    def add_steps(self, start: int, every: int, released: Released) -> None:
        """Appends the public numbers of steps ``start, start + every, ...``, one row each."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        file = self.path / "steps.csv"
        if not file.exists() or not file.stat().st_size:
            writer.writerow(_STEP_COLUMNS)
        for i, row in enumerate(zip(*released, strict=True)):
            writer.writerow([start + i * every, *(_cell(value) for value in row)])
        append(file, text.getvalue())

    def steps(self) -> dict[str, list[Any]]:
        """Returns the public numbers of steps, by column; thresholds of groups are lists."""
        file = self.path / "steps.csv"
        rows = list(csv.reader(_whole_lines(file)))[1:] if file.exists() else []
        columns = list(zip(*rows, strict=True)) or [()] * len(_STEP_COLUMNS)
        read = {
            name: [_number(cell) for cell in column]
            for name, column in zip(_STEP_COLUMNS, columns, strict=True)
        }
        return {**read, "step": [int(step) for step in read["step"]]}

    def cut(self, step: int) -> None:
        """Removes everything written after a checkpoint; it is computed again, bit for bit.

        Args:
            step: the checkpoint's step.
        """
        for name in ("released.jsonl", "diagnostics.jsonl"):
            _keep_lines(self.path / name, lambda line: json.loads(line)["step"] <= step)
        _keep_lines(
            self.path / "steps.csv",
            lambda line: line.startswith("step") or int(line.split(",")[0]) < step,
        )

    def trace(self) -> str:
        """Returns the folder for the profiler's output, after adding a note not to publish it."""
        folder = self.path / "trace"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "README", _TIMING + "\n")
        return str(folder)

    def write_timing(self, timing: Table) -> None:
        """Writes how long the run took, labelled non-private: it depends on the batch sizes."""
        labelled = {"label": _TIMING, **timing}
        write_atomically(self.path / "timing.json", _json.dumps(labelled) + "\n")


def _json_lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        rows = [json.loads(line) for line in _whole_lines(file)]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: expected JSON in every line: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{file}: expected a table in every line")
    return rows


def _keep_lines(file: Path, keep: Callable[[str], bool]) -> None:
    if not file.exists():
        return
    write_atomically(file, "".join(line for line in _whole_lines(file) if keep(line)))


def _whole_lines(file: Path) -> list[str]:
    """Returns the lines of a file, except an incomplete last one, which a kill may leave."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def _cell(value: chex.Numeric) -> str:
    """Formats a number so that it is read back exactly; a list is separated by spaces."""
    if getattr(value, "ndim", 0):
        return " ".join(_cell(item) for item in value)
    return repr(float(value))


def _number(cell: str) -> Any:
    return [float(item) for item in cell.split()] if " " in cell else float(cell)
