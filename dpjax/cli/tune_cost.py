"""``dpjax tune-cost``: the budget left for each run, by how the tuning is accounted."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpjax import accounting
from dpjax.accounting import Bound, tuning
from dpjax.accounting.bound import rounded_down, rounded_up
from dpjax.accounting.relation import relation_of
from dpjax.accounting.tuning import Tuning
from dpjax.cli import describe, flags, printing
from dpjax.cli.accountant_table import NO_NUMBER
from dpjax.cli.command import Command
from dpjax.cli.request import Request, read_request
from dpjax.train.plan import Setting

__all__ = ["COMMAND", "Price", "Way", "part_of", "priced", "ways"]


@dataclass(frozen=True)
class Way:
    """A way to choose among candidates.

    Attributes:
        name: its name.
        tuning: how it is accounted; None for one run without tuning.
        runs: the expected number of runs.
        published: what may be published.
        parts: the number of parts into which the data is split; each run sees one of them.
    """

    name: str
    tuning: Tuning | None
    runs: float
    published: str
    parts: int = 1


@dataclass(frozen=True)
class Price:
    """The budget that a way leaves for each run.

    Attributes:
        way: the way.
        setting: one run, with the noise that the budget allows; None if there is none.
        alone: the cost of that run by itself.
        whole: the cost of the search.
        error: why there is no such run.
    """

    way: Way
    setting: Setting | None = None
    alone: Bound | None = None
    whole: Bound | None = None
    error: str = ""


def ways(candidates: int, epsilon: float, mean: float | None = None) -> list[Way]:
    """Returns the ways to choose among candidates at a budget.

    Args:
        candidates: G, the number of candidates.
        epsilon: the budget; choosing among runs on disjoint parts spends it again on other data.
        mean: the expected number of runs where it can be chosen; None for 2 G, as in Liu and
            Talwar.
    """
    mean = 2.0 * candidates if mean is None else mean
    winner = "the winner, not the number of runs"
    repeated = [("geometric", 1.0), ("logarithmic", 0.0), ("Poisson", math.inf)]
    split = tuning.disjoint_split(candidates, epsilon)
    liu_talwar = tuning.liu_talwar(candidates)
    return [
        Way("no tuning", None, 1, "the run"),
        Way("liu_talwar", liu_talwar, 1 / liu_talwar.stopping, winner),
        Way("grid_composition", tuning.grid_composition(candidates), candidates, "every run"),
        *(
            Way(f"repeat, {name}", tuning.repeat_and_select(mean, shape), mean, winner)
            for name, shape in repeated
        ),
        Way("disjoint_split", split, candidates, "the chosen run", candidates + 1),
    ]


def priced(request: Request) -> tuple[Setting, list[Price]]:
    """Returns the requested run, and each way's price; raises ValueError if no way works."""
    if request.candidates is None:
        raise ValueError("candidates: missing; expected --candidates")
    setting = request.asked()
    _check(setting)
    known = ways(request.candidates, request.epsilon, request.mean)
    prices = [_price(way, request, setting) for way in known]
    if all(price.setting is None for price in prices):
        raise ValueError(prices[0].error)
    return setting, prices


def _check(setting: Setting) -> None:
    """Raises ValueError for settings for which searches cannot be accounted."""
    own = relation_of(setting.sampling).name.lower()
    if setting.relation != own:
        raise ValueError(f"relation = {setting.relation!r}: expected {own!r} for a search")
    if setting.start:
        raise ValueError(f"start = {setting.start}: expected 0, a search has whole runs")


def _price(way: Way, request: Request, setting: Setting) -> Price:
    try:
        if way.parts > 1:
            setting = part_of(request, way.parts).asked()
        found, whole = _planned(way, setting, request.epsilon)
        # By the same accountant, a run on its own part of the data costs what the search costs.
        accountant = found.accountant if whole is None or way.parts == 1 else whole.accountant
        alone = accounting.epsilon(
            found.mechanism, found.sampling, found.steps, found.delta, accountant
        )
    except NO_NUMBER as error:
        return Price(way, error=str(error))
    return Price(way, found, alone, alone if whole is None else whole)


def part_of(request: Request, parts: int) -> Request:
    """Returns the request for the same run on one of `parts` equal parts of the data.

    Batch size and epochs stay the same, so the rate is higher and there are fewer steps.
    """
    setting, train = request.asked(), request.experiment.train
    changes: dict[str, Any] = {
        "train.epochs": train.epochs or setting.steps / setting.steps_per_epoch,
        "privacy.delta": setting.delta,
    }
    if setting.dataset_size is not None:
        changes["data.examples"] = setting.dataset_size // parts
        if setting.dataset_size < parts:
            raise ValueError(f"dataset_size = {setting.dataset_size}: expected at least {parts}")
    return replace(request, experiment=request.experiment.with_values(changes))


def _planned(way: Way, setting: Setting, epsilon: float) -> tuple[Setting, Bound | None]:
    """Returns the run that the budget allows, and the cost of the search; None without a search."""
    budget = (setting.mechanism, setting.sampling, setting.steps, epsilon, setting.delta)
    if way.tuning is None:
        found = accounting.calibrate(*budget, setting.accountant)
        return replace(setting, method=found), None
    search = way.tuning.plan(*budget)
    return replace(setting, method=search.mechanism), search.epsilon(setting.delta)


_ASSUMED = (
    "Candidates may differ in all but noise, sampling and steps. Scores are taken to need no "
    "private data; otherwise they cost more (dpjax.accounting.tuning.Search, scoring)."
)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_request_flags(parser)
    flags.add_target_flag(parser)
    _add(parser, "--candidates", type=int, metavar="G", help="how many candidates there are")
    _add(parser, "--mean", type=float, metavar="K", help="expected runs when repeating; 2 G")


def _add(parser: argparse.ArgumentParser, flag: str, **kwargs: Any) -> None:
    parser.add_argument(flag, default=argparse.SUPPRESS, **kwargs)


def _run(args: argparse.Namespace) -> int:
    request = read_request(args)
    setting, prices = priced(request)
    data = describe.setting_data(request, setting)
    # Each way has its own noise.
    for key in ("method", "noise_multiplier", "sigma_gradient", "sigma_statistic"):
        del data[key]
    data.update(
        target=request.epsilon,
        candidates=request.candidates,
        assumed=_ASSUMED,
        results=[_price_data(price, request) for price in prices],
    )
    printing.show(args.json, _text(request, setting, prices), data)
    return 0


def _text(request: Request, setting: Setting, prices: Sequence[Price]) -> str:
    lines = [("method", setting.name), *describe.headed(request, setting)[1:]]
    lines.append(("budget", f"epsilon at most {request.epsilon:g} for the whole search"))
    lines.append(("candidates", f"{request.candidates}"))
    marks, notes = printing.footnotes([_note(price, request) for price in prices])
    header = ("way", "noise", "one run alone", "whole", "runs", "may be published")
    body = [_cells(price, mark) for price, mark in zip(prices, marks, strict=True)]
    return f"{printing.pairs(lines)}\n\n{printing.table(header, body)}{notes}\n\n{_ASSUMED}"


def _cells(price: Price, mark: str) -> list[str]:
    name = price.way.name + mark
    if price.setting is None or price.alone is None or price.whole is None:
        return [name, *["-"] * 5]
    noise = describe.noise_of(price.setting)
    sigma = rounded_up(noise.total[0])
    return [
        name,
        sigma,
        f"{rounded_up(price.alone)} ({price.alone.accountant})",
        f"{rounded_up(price.whole)} ({price.whole.accountant})",
        f"{price.way.runs:g}",
        price.way.published,
    ]


def _note(price: Price, request: Request) -> str:
    if price.setting is None or price.whole is None:
        return price.error
    notes = [price.whole.note] if price.whole.note else []
    if price.way.parts > 1:
        size = price.setting.dataset_size
        examples = f"{size} examples" if size is not None else f"1/{price.way.parts} of the data"
        notes.insert(0, f"each run has {price.setting.steps} steps on {examples}")
    if (per_run := _per_run(price, request)) is not None:
        epsilon, delta = (rounded_down(per_run[key]) for key in ("epsilon", "delta"))
        notes.insert(0, f"each run with its score may cost (eps_1, delta_1) = ({epsilon}, {delta})")
    return "; ".join(notes)


def _per_run(price: Price, request: Request) -> dict[str, float] | None:
    """Returns the budget that Liu and Talwar's method leaves for each run."""
    if price.setting is None or not isinstance(price.way.tuning, tuning.liu_talwar):
        return None
    found = price.way.tuning.per_run(request.epsilon, price.setting.delta)
    return dict(zip(("epsilon", "delta"), found, strict=True))


def _price_data(price: Price, request: Request) -> dict[str, Any]:
    way = price.way
    data: dict[str, Any] = {
        "way": way.name,
        "tuning": None if way.tuning is None else way.tuning.to_plain(),
        "expected_runs": way.runs,
        "published": way.published,
        "note": _note(price, request),
        "per_run": _per_run(price, request),
    }
    if price.setting is None or price.alone is None or price.whole is None:
        return data
    return {
        **data,
        **describe.setting_data(request, price.setting),
        "alone": printing.bound_data(price.alone),
        "whole": printing.bound_data(price.whole),
    }


COMMAND = Command(_add_flags, _run)
