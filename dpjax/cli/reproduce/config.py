"""``dpjax reproduce config``: a cell as a file that ``dpjax train --config`` takes."""

import argparse

from dpjax.cli.command import Command
from dpjax.cli.reproduce.flags import add_store_flag, store_of
from dpjax.reproduce import cell_named, outcome_of

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cell", metavar="CELL", help="as dc-sgd/IV/mnist/cnn/2/dp-sgd")
    add_store_flag(parser)


def _run(args: argparse.Namespace) -> int:
    outcome = outcome_of(cell_named(args.cell), store_of(args))
    recipe = outcome.recipe
    if recipe.experiment is None:
        raise ValueError(f"{args.cell}: expected a cell with runs. {recipe.obstacle}")
    chosen = recipe.experiment.with_values(outcome.choice or recipe.only_choice)
    said = [f"# {args.cell}: printed {outcome.cell.accuracy:g}"]
    said += [f"# ours to say: {recipe.ours}"] if recipe.ours else []
    said += [f"# needs {recipe.needs}"] if recipe.needs else []
    said += [f"# {path}: the paper tries {list(v)}" for path, v in recipe.paper_grid.items()]
    print("\n".join([*said, chosen.to_toml().rstrip()]))
    return 0


COMMAND = Command(
    _add_flags,
    _run,
    ("dpjax reproduce config dc-sgd/IV/mnist/cnn/2/dp-sgd > cell.toml",),
)
