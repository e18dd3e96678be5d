"""Each accountant's answer for a setting: an epsilon, or why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpjax import accounting
from dpjax.accounting import Bound, Ledger, Steps
from dpjax.accounting.bound import rounded_up
from dpjax.cli import printing
from dpjax.train.plan import Setting

__all__ = ["NO_NUMBER", "AccountantRow", "data", "measured", "text"]

NO_NUMBER = (ValueError, ArithmeticError, MemoryError)
"""What an accountant without a number raises: a refusal, or noise out of its numerical range."""


@dataclass(frozen=True)
class AccountantRow:
    """One accountant's answer.

    Attributes:
        accountant: the accountant's name.
        each: the epsilon of one run; None if there is no answer.
        all_published: the epsilon of all runs together; None for a single run.
        error: why there is no answer.
    """

    accountant: str
    each: Bound | None = None
    all_published: Bound | None = None
    error: str = ""


def measured(setting: Setting, accountants: Sequence[str], runs: int = 1) -> list[AccountantRow]:
    """Returns a row for each accountant; raises ValueError if none has an answer."""
    rows = [_row(setting, accountant, runs) for accountant in accountants]
    if all(row.each is None for row in rows):
        raise ValueError(rows[0].error)
    return rows


def _row(setting: Setting, accountant: str, runs: int) -> AccountantRow:
    try:
        each = accounting.epsilon(
            setting.mechanism,
            setting.sampling,
            setting.steps,
            setting.delta,
            accountant,
            start=setting.start,
            relation=setting.relation,
        )
        together = None if runs == 1 else _together(setting, accountant, runs)
    except NO_NUMBER as error:
        return AccountantRow(accountant, error=str(error))
    return AccountantRow(accountant, each, together)


def _together(setting: Setting, accountant: str, runs: int) -> Bound:
    entry = Steps(setting.mechanism, setting.sampling, setting.steps, setting.start)
    ledger = Ledger("the data", entries=(entry,) * runs)
    return ledger.epsilon(setting.delta, accountant, relation=setting.relation)


def text(rows: Sequence[AccountantRow], runs: int = 1) -> str:
    """Returns the rows as a table, with their notes below."""
    notes = [row.error or (row.each.note if row.each is not None else "") for row in rows]
    marks, lines = printing.footnotes(notes)
    several = runs > 1
    header = ["accountant", "epsilon", "at least", "relation", "guarantee"]
    if several:
        header[1:3] = ["each", f"all {runs} published"]
    body = [_cells(row, mark, several) for row, mark in zip(rows, marks, strict=True)]
    return printing.table(header, body) + lines


def _cells(row: AccountantRow, mark: str, several: bool) -> list[str]:
    if row.each is None:
        return [row.accountant, "-", "-", "-", f"-{mark}"]
    second = printing.at_least(row.each.lower)
    if several and row.all_published is not None:
        second = rounded_up(row.all_published)
    worth = printing.yes_or_no(row.each.guarantee) + mark
    return [row.accountant, rounded_up(row.each), second, row.each.relation, worth]


def data(rows: Sequence[AccountantRow]) -> list[dict[str, Any]]:
    """Returns the rows as plain data."""
    return [_row_data(row) for row in rows]


def _row_data(row: AccountantRow) -> dict[str, Any]:
    if row.each is None:
        return {"accountant": row.accountant, "epsilon": None, "note": row.error}
    data = printing.bound_data(row.each)
    if row.all_published is not None:
        data["all_published"] = printing.bound_data(row.all_published)
    return data
