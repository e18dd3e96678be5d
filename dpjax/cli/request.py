"""A request from a file and flags, as one frozen record, checked field by field."""

from dataclasses import dataclass
from typing import Any

from dpjax import _checks
from dpjax.accounting.relation import ACCOUNTANTS

__all__ = ["SAMPLINGS", "Request"]

SAMPLINGS = ("poisson", "truncated", "fixed", "full")


@dataclass(frozen=True)
class Request:
    """A request as written; `dpjax.cli.setting.Setting` is the resolved form.

    Args:
        method: a table: the plain form of a mechanism, or a constructor's name with its
            arguments.
        sampling: one of `SAMPLINGS`, or a table, the plain form of a sampling; None for Poisson
            sampling at B / N.
        dataset_size: N.
        batch_size: B, the expected batch size.
        max_size: the largest batch, for truncated sampling.
        steps: how many steps are released.
        epochs: the number of epochs, instead of steps.
        start: how many steps were released before.
        delta: a number, "1/N", or None for 1/N.
        accountant: names of accountants, or "all"; empty for the sampler's first.
        relation: the neighbouring relation; None for the sampler's own.
        runs: how many such runs are published.
        epsilon: the budget to calibrate for.
        candidates: the number of candidates in a search.
        mean: the expected number of runs in a repeated search; None for two per candidate.
    """

    method: Any = None
    sampling: Any = None
    dataset_size: int | None = None
    batch_size: int | None = None
    max_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    start: int = 0
    delta: float | str | None = None
    accountant: tuple[str, ...] = ()
    relation: str | None = None
    runs: int = 1
    epsilon: float | None = None
    candidates: int | None = None
    mean: float | None = None

    def __post_init__(self) -> None:
        """Checks the fields, and that exclusive ones are not combined."""
        counts = ("dataset_size", "batch_size", "max_size", "steps", "runs", "candidates")
        for field in self._given(*counts):
            _checks.integer(field, getattr(self, field), at_least=1)
        _checks.integer("start", self.start, at_least=0)
        for field in self._given("epochs", "epsilon", "mean"):
            _checks.positive(field, getattr(self, field))
        if self.delta not in (None, "1/N"):
            _checks.fraction("delta", self.delta)
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"epochs = {self.epochs:g} with steps = {self.steps}: expected one")
        self._check_names()
        self._check_sampling()

    def required(self, field: str) -> Any:
        """Returns a field that a command requires; raises ValueError if it is missing."""
        value = getattr(self, field)
        if value is None:
            flag = field.replace("_", "-")
            raise ValueError(f"{field}: missing; expected --{flag}, or {field} in the file")
        return value

    def _given(self, *fields: str) -> list[str]:
        return [field for field in fields if getattr(self, field) is not None]

    def _check_names(self) -> None:
        known = (*ACCOUNTANTS, "all")
        for name in self.accountant:
            if name not in known:
                hint = _checks.nearest(str(name), known)
                raise ValueError(f"accountant = {name!r}: {hint}")
        if not isinstance(self.relation, str | None):
            raise TypeError(f"relation = {self.relation!r}: expected a name")

    def _check_sampling(self) -> None:
        if not isinstance(self.sampling, str | dict | None):
            raise TypeError(f"sampling = {self.sampling!r}: expected a name or a table")
        if isinstance(self.sampling, str) and self.sampling not in SAMPLINGS:
            hint = _checks.nearest(self.sampling, SAMPLINGS)
            raise ValueError(f"sampling = {self.sampling!r}: {hint}")
        if self.max_size is not None and self.sampling != "truncated":
            raise ValueError(f"max_size = {self.max_size}: expected sampling = 'truncated' with it")
        if self.batch_size is None:
            return
        if isinstance(self.sampling, dict) or self.sampling == "full":
            raise ValueError(
                f"batch_size = {self.batch_size} with sampling = {self.sampling!r}: expected one "
                "of them, since the sampling says the size itself"
            )
        if self.dataset_size is not None and self.batch_size > self.dataset_size:
            raise ValueError(
                f"batch_size = {self.batch_size}: expected at most dataset_size = "
                f"{self.dataset_size}"
            )
