"""``dpjax reproduce``: the papers' tables, run again. A new command is one row of `GROUP`."""

from dpjax.cli.command import Group
from dpjax.cli.reproduce import config, explain, figure, listing, planning, report, run

__all__ = ["GROUP"]

GROUP = Group(
    {
        "list": (
            "the papers' tables, and how far each is run",
            listing.COMMAND,
        ),
        "config": (
            "a cell's experiment as TOML, for `dpjax train --config`",
            config.COMMAND,
        ),
        "plan": (
            "the runs behind a table that are still to be made, and their time",
            planning.COMMAND,
        ),
        "run": (
            "make the runs behind a table's cells; finished ones are kept, begun ones go on",
            run.COMMAND,
        ),
        "explain": (
            "run what changes a suspected setting of a cell that does not come out as printed",
            explain.COMMAND,
        ),
        "report": (
            "the stored runs beside the printed numbers: REPORT.md and a picture",
            report.COMMAND,
        ),
        "figure": (
            "draw the papers' figures from the stored runs",
            figure.COMMAND,
        ),
    },
)
