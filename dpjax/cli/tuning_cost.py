"""Ways to pay for tuning, each with the run that a budget leaves it."""

import math
from dataclasses import dataclass, replace

from dpjax import accounting
from dpjax.accounting import Bound, tuning
from dpjax.accounting.relation import relation_of
from dpjax.accounting.tuning import Tuning
from dpjax.cli.accountant_table import NO_NUMBER
from dpjax.cli.request import Request
from dpjax.cli.setting import Setting, part_of, setting_of

__all__ = ["Price", "Way", "priced", "ways"]


@dataclass(frozen=True)
class Way:
    """A way to choose among candidates.

    Attributes:
        name: what it is called.
        tuning: how it is accounted; None for one run that nobody tuned.
        runs: how many runs are expected.
        published: what may be published.
        parts: into how many parts the data fall; each run sees one of them.
    """

    name: str
    tuning: Tuning | None
    runs: float
    published: str
    parts: int = 1


@dataclass(frozen=True)
class Price:
    """What a way leaves for each run.

    Attributes:
        way: the way.
        setting: one run, with the noise that the budget allows; None if there is none.
        alone: what that run costs by itself.
        whole: what the search costs.
        error: why there is no run.
    """

    way: Way
    setting: Setting | None = None
    alone: Bound | None = None
    whole: Bound | None = None
    error: str = ""


def ways(candidates: int, epsilon: float, mean: float | None = None) -> list[Way]:
    """Returns the ways to choose among so many candidates for a budget.

    Args:
        candidates: G.
        epsilon: the budget; a choice among runs on disjoint parts spends it once more, on others.
        mean: the expected number of runs where it is free; None for 2 G, as Liu and Talwar have.
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
    """Returns the run as it was asked for, and what each way leaves of it; refuses if none does."""
    setting = setting_of(request, calibrated=False)
    _check(setting)
    epsilon = request.required("epsilon")
    known = ways(request.required("candidates"), epsilon, request.mean)
    prices = [_price(way, request, setting, epsilon) for way in known]
    if all(price.setting is None for price in prices):
        raise ValueError(prices[0].error)
    return setting, prices


def _check(setting: Setting) -> None:
    """Refuses what searches are not accounted for."""
    own = relation_of(setting.sampling).name.lower()
    if setting.relation != own:
        raise ValueError(f"relation = {setting.relation!r}: expected {own!r} for a search")
    if setting.start:
        raise ValueError(f"start = {setting.start}: expected 0, a search has whole runs")


def _price(way: Way, request: Request, setting: Setting, epsilon: float) -> Price:
    try:
        if way.parts > 1:
            setting = setting_of(part_of(request, setting, way.parts), calibrated=False)
        found, whole = _planned(way, setting, epsilon)
        # On its own part of the data a run costs what the search costs, by the same accountant.
        accountant = found.accountants[0] if whole is None or way.parts == 1 else whole.accountant
        alone = accounting.epsilon(
            found.mechanism, found.sampling, found.steps, found.delta, accountant
        )
    except NO_NUMBER as error:
        return Price(way, error=str(error))
    return Price(way, found, alone, alone if whole is None else whole)


def _planned(way: Way, setting: Setting, epsilon: float) -> tuple[Setting, Bound | None]:
    """Returns the run that the budget allows, and the cost of the search, None without one."""
    budget = (setting.mechanism, setting.sampling, setting.steps, epsilon, setting.delta)
    if way.tuning is None:
        found = accounting.calibrate(*budget, setting.accountants[0])
        return replace(setting, mechanism=found), None
    search = way.tuning.plan(*budget)
    return replace(setting, mechanism=search.mechanism), search.epsilon(setting.delta)
