"""Which run a folder holds: what was asked for, its keys, and what draws its random bits."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np

import dpjax
from dpjax import _checks, noise

__all__ = ["RunIdentity", "differences", "environment", "member_key", "next_lineage", "root_key"]


def environment() -> dict[str, str | bool]:
    """Returns what decides which bits a key draws here, and how they become numbers.

    A run that resumes from a checkpoint may repeat steps that it has released. In the same
    environment it repeats them bit for bit. In another it might put other noise on the same sum,
    or the same noise on another sum: both releases together would cost more than the ledger says.
    JAX's two flags change what augmentation draws.
    """
    flags: Any = jax.config  # which makes its attributes at run time
    return {
        "dpjax": dpjax.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "platform": jax.default_backend(),
        "noise": noise.DEFINITION,
        "threefry_partitionable": bool(flags.jax_threefry_partitionable),
        "x64": bool(flags.jax_enable_x64),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
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
    """

    lineage: str
    member: int = 0
    members: int = 1
    varied: tuple[str, ...] = ()
    environment: Mapping[str, str | bool] = field(default_factory=environment)

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
    def from_plain(cls, plain: Any) -> Self:
        """Reads what `to_json` wrote; anything else is refused."""
        if not isinstance(plain, Mapping) or not isinstance(plain.get("environment"), Mapping):
            raise TypeError("expected a table with a table 'environment'")
        return cls(**{**plain, "varied": tuple(plain.get("varied", ()))})


def root_key(seed: int | None = None) -> jax.Array:
    """Returns a threefry key: of a seed, or of 64 bits from the operating system's entropy.

    A seed is for reproduction: whoever knows it can subtract the noise.
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
