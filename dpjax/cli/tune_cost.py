"""``dpjax tune-cost``: what a budget leaves for each run, by the way the tuning is paid for."""

import argparse
from collections.abc import Sequence
from typing import Any

from dpjax.accounting import tuning
from dpjax.accounting.bound import rounded_down, rounded_up
from dpjax.cli import describe, flags, printing
from dpjax.cli.command import Command
from dpjax.cli.request import Request
from dpjax.cli.setting import Setting
from dpjax.cli.source import read_request
from dpjax.cli.tuning_cost import Price, priced

__all__ = ["COMMAND"]

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
    data = describe.setting_data(setting)
    # The noise is each way's own.
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
    lines = [("method", setting.name), *describe.headed(setting)[1:]]
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
    if price.setting is None:
        return price.error
    if price.way.parts > 1:
        size = price.setting.dataset_size
        examples = f"{size} examples" if size is not None else f"1/{price.way.parts} of the data"
        return f"each run has {price.setting.steps} steps on {examples}"
    per_run = _per_run(price, request)
    if per_run is not None:
        epsilon, delta = (rounded_down(per_run[key]) for key in ("epsilon", "delta"))
        return f"each run with its score may cost (eps_1, delta_1) = ({epsilon}, {delta})"
    return price.alone.note if price.alone is not None else ""


def _per_run(price: Price, request: Request) -> dict[str, float] | None:
    """Returns the budget that Liu and Talwar leave for each run."""
    if price.setting is None or not isinstance(price.way.tuning, tuning.liu_talwar):
        return None
    found = price.way.tuning.per_run(request.required("epsilon"), price.setting.delta)
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
        **describe.setting_data(price.setting),
        "alone": printing.bound_data(price.alone),
        "whole": printing.bound_data(price.whole),
    }


COMMAND = Command(_add_flags, _run)
