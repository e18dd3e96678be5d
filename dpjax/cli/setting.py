"""A resolved request: the method, its sampler and steps, the delta and the accountants."""

from dataclasses import dataclass, replace
from typing import Any

from dpjax.accounting.relation import SUPPORTED, as_relation
from dpjax.cli.request import Request
from dpjax.mechanism import Mechanism
from dpjax.methods.table import build_method
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from dpjax.schedules import steps_of

__all__ = ["Setting", "part_of", "setting_of"]


@dataclass(frozen=True)
class Setting:
    """One run, and how it is accounted.

    Attributes:
        mechanism: the mechanism that runs and is accounted.
        sampling: the sampling that draws its batches.
        steps: how many steps are released.
        epochs: the same as a number of epochs.
        start: how many steps were released before.
        delta: the target.
        delta_is_default: whether delta was not given, and so is 1 / N.
        accountants: the accountants, in the order requested.
        relation: the neighbouring relation, such as "add_or_remove_one".
        dataset_size: N, if known.
        batch_size: the expected batch size, if known.
    """

    mechanism: Mechanism
    sampling: Sampling
    steps: int
    epochs: float
    start: int
    delta: float
    delta_is_default: bool
    accountants: tuple[str, ...]
    relation: str
    dataset_size: int | None
    batch_size: float | None

    @property
    def name(self) -> str:
        """The mechanism's name."""
        return self.mechanism.name or "a mechanism"


def setting_of(request: Request, calibrated: bool = True) -> Setting:
    """Resolves a request.

    Args:
        request: the request.
        calibrated: whether the noise must already be known.
    """
    sampling = _sampling(request)
    size = _dataset_size(request, sampling)
    per_epoch = _steps_per_epoch(request, sampling)
    steps, epochs = _length(request, per_epoch)
    facts = {
        "steps": request.start + steps,
        "steps_per_epoch": per_epoch,
        "epochs": steps_of(request.start + steps, 1 / per_epoch),
        "dataset_size": size,
    }
    relation = as_relation(request.relation, sampling)
    works = SUPPORTED[type(sampling)][relation]
    return Setting(
        mechanism=_mechanism(request, facts, calibrated),
        sampling=sampling,
        steps=steps,
        epochs=epochs,
        start=request.start,
        delta=_delta(request, size),
        delta_is_default=request.delta is None,
        accountants=_accountants(request.accountant, works),
        relation=relation.name.lower(),
        dataset_size=size,
        batch_size=request.batch_size or (None if size is None else size / per_epoch),
    )


def _mechanism(request: Request, facts: dict[str, Any], calibrated: bool) -> Mechanism:
    if request.method is None:
        raise ValueError("method: missing; expected --method NAME, or a [method] table in the file")
    built = build_method(request.method, facts)
    if not isinstance(built, Mechanism):
        raise ValueError(f"method {built.name}: {built.guarantee.statement}")
    if calibrated and not built.calibrated:
        raise ValueError(
            f"method.noise_multiplier: missing; {built.name or 'the mechanism'} needs it, as in "
            "--noise-multiplier 1.0"
        )
    return built


def part_of(request: Request, setting: Setting, parts: int) -> Request:
    """Returns the request for the same run on one of `parts` equal parts of the data.

    Batch size and epochs stay the same, so the rate is higher and there are fewer steps.
    """
    size = None if setting.dataset_size is None else setting.dataset_size // parts
    if size == 0:
        raise ValueError(f"dataset_size = {setting.dataset_size}: expected at least {parts}")
    grown = parts if size is None or setting.dataset_size is None else setting.dataset_size / size
    plain: dict[str, Any] = setting.sampling.to_plain()
    if "rate" in plain:
        plain["rate"] *= grown
    if "dataset_size" in plain:
        plain["dataset_size"] = size
    return replace(
        request,
        sampling=plain,
        dataset_size=size,
        batch_size=None,
        max_size=None,
        steps=None,
        epochs=setting.epochs,
        delta=setting.delta,
    )


def _sampling(request: Request) -> Sampling:
    """Returns the sampling that a request describes."""
    if isinstance(request.sampling, dict):
        try:
            return Sampling.from_plain(request.sampling)
        except (TypeError, ValueError) as error:
            raise ValueError(f"sampling: {error}") from error
    if request.sampling == "full":
        return FullBatch(request.dataset_size)
    size, batch = request.required("dataset_size"), request.required("batch_size")
    if request.sampling == "truncated":
        return TruncatedPoisson(batch, size, request.required("max_size"))
    if request.sampling == "fixed":
        return FixedSize(batch, size)
    return Poisson(batch, size)


def _steps_per_epoch(request: Request, sampling: Sampling) -> float:
    """Returns N / B."""
    if request.dataset_size is not None and request.batch_size is not None:
        return request.dataset_size / request.batch_size
    if isinstance(sampling, FullBatch):
        return 1.0
    if isinstance(sampling, FixedSize):
        return sampling.dataset_size / sampling.size
    return 1 / sampling.rate


def _length(request: Request, steps_per_epoch: float) -> tuple[int, float]:
    """Returns the number of steps, and the same as epochs."""
    if request.steps is not None:
        return request.steps, request.steps / steps_per_epoch
    if request.epochs is None:
        raise ValueError("steps: missing; expected --steps or --epochs, or one of them in the file")
    steps = request.epochs * steps_per_epoch
    if not steps < 2**31:
        raise ValueError(f"epochs = {request.epochs:g}: expected fewer than 2^31 steps")
    return steps_of(request.epochs, steps_per_epoch), request.epochs


def _dataset_size(request: Request, sampling: Sampling) -> int | None:
    own: int | None = getattr(sampling, "dataset_size", None)
    if own is not None and request.dataset_size not in (None, own):
        raise ValueError(
            f"dataset_size = {request.dataset_size}: expected {own}, as the sampling says"
        )
    return request.dataset_size if own is None else own


def _delta(request: Request, size: int | None) -> float:
    if isinstance(request.delta, int | float):
        return request.delta
    if size is None:
        raise ValueError("delta: missing; expected --delta, or --dataset-size for 1/N")
    return 1 / size


def _accountants(asked: tuple[str, ...], works: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the requested accountants, each once; if none was requested, the first that works."""
    if not asked:
        return works[:1] or ("pld",)
    named = [name for entry in asked for name in (works if entry == "all" else (entry,))]
    return tuple(dict.fromkeys(named)) or ("pld",)
