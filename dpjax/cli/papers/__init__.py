"""``dpjax papers``: reruns the papers' tables. A new command is one row of `GROUP`."""

from dpjax.cli.command import Group
from dpjax.cli.papers import figure, overview, report, run

__all__ = ["GROUP"]

GROUP = Group(
    {
        "list": (
            "the papers' tables, and how much of each has been run",
            overview.LIST,
        ),
        "config": (
            "a cell's experiment as TOML, for `dpjax train --config`",
            overview.CONFIG,
        ),
        "plan": (
            "the runs that a table still needs, and how long they take",
            overview.PLAN,
        ),
        "run": (
            "train the runs behind a table; finished ones are kept, interrupted ones resume",
            run.RUN,
        ),
        "explain": (
            "train with one suspected setting changed, where a cell is not reproduced as printed",
            run.EXPLAIN,
        ),
        "report": (
            "compare stored runs with printed numbers: pages in Markdown and HTML, and a picture",
            report.COMMAND,
        ),
        "figure": (
            "draw the papers' figures from the stored runs",
            figure.COMMAND,
        ),
    },
)
