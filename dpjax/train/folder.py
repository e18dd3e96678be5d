"""A run on disk: which run it is, what may be published, what may not, and how to resume it."""

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

# What Linux says of a processor's model and instructions, on x86 and on ARM.
_CPU_FIELDS = (
    *("vendor_id", "cpu family", "model", "flags"),
    *("CPU implementer", "CPU part", "CPU variant", "Features"),
)
_HOST_DEVICES = "--xla_force_host_platform_device_count"


def environment() -> dict[str, str | bool]:
    """Returns what decides which bits a key draws here, and how they become numbers.

    A run that resumes from a checkpoint may repeat steps that it has released. In the same
    environment it repeats them bit for bit. In another it might put other noise on the same sum,
    or the same noise on another sum: both releases together would cost more than the ledger says.
    The kind of device, XLA's flags and the precision of matrix products change the last bits of a
    gradient, or more; JAX's two other flags change what augmentation draws.
    """
    flags: Any = jax.config  # which makes its attributes at run time
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
    """Returns the kind of device; XLA compiles for the model and the instructions of a CPU."""
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
    """Returns XLA's flags without the number of host devices, on which batches do not depend."""
    words = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(word for word in words if not word.startswith(_HOST_DEVICES))


def differences(old: Table, new: Table) -> str:
    """Says in which values two tables differ; inside tables of tables, by their paths.

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
    """Which run a folder holds.

    The experiment's identity (`Experiment.identity`) is what was asked for, and results are stored
    under it. The run's adds its keys and the environment that draws from them.

    Args:
        lineage: what its keys are folded with; see `member_key`.
        member: which of several runs of the same experiment.
        members: how many were begun together.
        varied: the numbers in which these differ, by their paths.
        environment: what draws its bits.
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
        """Checks the fields: the lineage names a folder, which must lie inside the run's own."""
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
        """What its checkpoints carry; those of others are foreign."""
        plain = json.dumps(self.environment, sort_keys=True)
        made = hashlib.sha256(plain.encode()).hexdigest()
        return f"{self.lineage}/{self.member}/{made[:16]}"

    def to_json(self) -> str:
        """Returns the identity as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Reads what `to_json` wrote; anything else is refused."""
        if not isinstance(plain, Mapping) or not isinstance(plain.get("environment"), Mapping):
            raise TypeError("expected a table with a table 'environment'")
        return cls(**{**plain, "varied": tuple(plain.get("varied", ()))})


def root_key(seed: int | None = None) -> jax.Array:
    """Returns a threefry key: of a seed, or of 64 bits from the operating system's entropy.

    A seed is for reproduction: whoever knows it can subtract the noise.

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

    It depends on what the run is. Otherwise two experiments with one seed would put the same noise
    on different signals, whose difference is then free of noise; and with the same batches, their
    composition would cost more than that of runs with batches of their own, which is what
    "all published" counts.

    Args:
        root: the root key.
        lineage: the experiment's identity, or `next_lineage` after a change on the way.
        member: which of several runs of the same experiment.

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
    """Returns the lineage of a run that goes on from `step` as another experiment.

    It is new even if the experiment was run before: going back to an old configuration does not go
    back to its noise.

    >>> a, b = "00" * 32, "11" * 32
    >>> next_lineage(next_lineage(a, b, 5), a, 9) not in (a, b)
    True
    """
    return hashlib.sha256(f"{lineage} {identity} {step}".encode()).hexdigest()


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    ``config.toml`` the resolved experiment; ``run.json`` which run this is; ``released.jsonl`` a
    line per evaluation; ``steps.csv`` the public numbers of steps, of 10,000 at most;
    ``ledger.json`` what was released, written before it is; ``statement.md`` the same in words;
    ``diagnostics.jsonl`` non-private numbers, if asked for; ``checkpoints/`` states with keys,
    private; ``timing.json`` how long it took, not private either; ``trace/`` of the profiler,
    neither.

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
        """The resolved experiment."""
        return self.path / "config.toml"

    def checkpoints(self, lineage: str) -> Path:
        """Returns the folder of a lineage's checkpoints."""
        return self.path / "checkpoints" / lineage[:16]

    def create(self) -> None:
        """Makes the folder; refuses one that holds a run, or part of one, such as an export."""
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
        """Says which run this is: the last act of beginning one."""
        write_atomically(self.path / "run.json", identity.to_json() + "\n")

    def change(self, identity: RunIdentity, experiment: Experiment) -> None:
        """Makes the run another experiment; a kill leaves all of the old one, or of the new one."""
        write_atomically(self._new_config(identity), experiment.to_toml())
        self.commit(identity)
        self.settle()

    def settle(self) -> None:
        """Ends a change that was cut short after it took place."""
        new = self._new_config(self.identity())
        if new.exists():
            new.replace(self.config_file)

    def identity(self) -> RunIdentity:
        """Returns which run this is."""
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
        """Where the experiment of a change waits until run.json says that the change is made."""
        return self.checkpoints(identity.lineage) / "config.toml"

    def write_ledger(self, ledger: Ledger) -> None:
        """Writes the ledger; called before what it says is released."""
        write_atomically(self.path / "ledger.json", ledger.to_json() + "\n")

    def read_ledger(self) -> Ledger | None:
        """Reads the ledger; None where nothing is accounted for."""
        file = self.path / "ledger.json"
        return Ledger.from_json(file.read_text(encoding="utf-8")) if file.exists() else None

    def write_statement(self, text: str) -> None:
        """Writes the privacy statement."""
        write_atomically(self.path / "statement.md", text)

    def remove_statement(self) -> None:
        """Takes a statement away that will soon say too little."""
        (self.path / "statement.md").unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes away while this one trains here; a kill lets go of it."""
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
        """Adds the public numbers of an evaluation."""
        append(self.path / "released.jsonl", _json.dumps(row) + "\n")

    def released(self) -> list[dict[str, Any]]:
        """Returns the evaluations; a line that lacks a number of every evaluation is refused.

        JSON has no NaN: an accuracy or a loss that is no number is null in the file and NaN here.
        Other nulls are None: there is no epsilon without a guarantee.
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
        """Adds non-private numbers, labelled as such."""
        labelled = {"label": NOT_PRIVATE, **row}
        append(self.path / "diagnostics.jsonl", _json.dumps(labelled) + "\n")

    def diagnostics(self) -> list[dict[str, Any]]:
        """Returns the non-private numbers."""
        return _json_lines(self.path / "diagnostics.jsonl")

    def add_steps(self, start: int, every: int, released: Released) -> None:
        """Adds the public numbers of the steps ``start, start + every, ...``, one row each."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        file = self.path / "steps.csv"
        if not file.exists() or not file.stat().st_size:
            writer.writerow(_STEP_COLUMNS)
        for i, row in enumerate(zip(*released, strict=True)):
            writer.writerow([start + i * every, *(_cell(value) for value in row)])
        append(file, text.getvalue())

    def steps(self) -> dict[str, list[Any]]:
        """Returns the public numbers of the steps by column; a threshold per group is a list."""
        file = self.path / "steps.csv"
        rows = list(csv.reader(_whole_lines(file)))[1:] if file.exists() else []
        columns = list(zip(*rows, strict=True)) or [()] * len(_STEP_COLUMNS)
        read = {
            name: [_number(cell) for cell in column]
            for name, column in zip(_STEP_COLUMNS, columns, strict=True)
        }
        return {**read, "step": [int(step) for step in read["step"]]}

    def cut(self, step: int) -> None:
        """Takes away what was written after a checkpoint: it will be computed again, bit for bit.

        Args:
            step: how many steps the checkpoint has.
        """
        for name in ("released.jsonl", "diagnostics.jsonl"):
            _keep_lines(self.path / name, lambda line: json.loads(line)["step"] <= step)
        _keep_lines(
            self.path / "steps.csv",
            lambda line: line.startswith("step") or int(line.split(",")[0]) < step,
        )

    def trace(self) -> str:
        """Returns where the profiler writes, with a note that it is not to be published."""
        folder = self.path / "trace"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "README", _TIMING + "\n")
        return str(folder)

    def write_timing(self, timing: Table) -> None:
        """Writes how long the run took, labelled: it follows the sizes of the batches."""
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
    """Returns the lines of a file but for half a one, which a kill may leave at its end."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def _cell(value: chex.Numeric) -> str:
    """Writes a number so that it is read back exactly; a threshold per group with spaces."""
    if getattr(value, "ndim", 0):
        return " ".join(_cell(item) for item in value)
    return repr(float(value))


def _number(cell: str) -> Any:
    return [float(item) for item in cell.split()] if " " in cell else float(cell)
