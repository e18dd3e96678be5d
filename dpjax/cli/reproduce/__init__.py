"""``dpjax reproduce``: the papers' tables, run again. A new command is one row of `GROUP`."""

from dpjax.cli.command import Group
from dpjax.cli.reproduce import config, explain, figure, listing, planning, report, run

__all__ = ["GROUP"]

GROUP = Group(
    "the papers' tables, run again and set beside the printed numbers",
    {
        "list": listing.COMMAND,
        "config": config.COMMAND,
        "plan": planning.COMMAND,
        "run": run.COMMAND,
        "explain": explain.COMMAND,
        "report": report.COMMAND,
        "figure": figure.COMMAND,
    },
)
