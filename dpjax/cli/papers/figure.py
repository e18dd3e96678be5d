"""``dpjax papers figure``: the papers' figures."""

import argparse
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpjax import _checks
from dpjax.cli.command import Command
from dpjax.cli.papers.figures import (
    Figure,
    Sources,
    formulas,
    gradients,
    squared_error,
    stored_runs,
)
from dpjax.cli.papers.flags import add_store_flag, store_of

__all__ = ["COMMAND", "FIGURES"]

FIGURES: Mapping[str, Figure] = {
    "lin-thresholds": stored_runs.THRESHOLDS,
    "dc-squared-error": squared_error.FIGURE,
    "dc-sensitivity": stored_runs.SENSITIVITY,
    "clipped-norms": formulas.CLIPPED_NORMS,
    "psasc-gradients": gradients.FIGURE,
    "noise-decays": formulas.NOISE_DECAYS,
}
"""The papers' figures; a new one is one row."""

_DPI = 110


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--all", action="store_true", help="every figure")
    parser.add_argument(
        "--out", metavar="FILE", help="a .png, .pdf or .svg file; STORE/figures/NAME.png without it"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the folder of the data sets, for figures that train; the embedded digits without it",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="train and measure first, for figures that need more than runs; writes to the store",
    )
    add_store_flag(parser)


def _run(args: argparse.Namespace) -> int:
    names = _names(args)
    if args.out is not None and len(names) > 1:
        raise ValueError(f"--out {args.out}: expected one figure, not --all")
    sources = Sources(store_of(args), args.data_dir)
    failed = []
    for name in names:
        try:
            print(_drawn(name, sources, args))
        except (OSError, ValueError) as error:
            if len(names) == 1:
                raise
            failed.append(f"{name}: {error}")
    if failed:
        raise ValueError("; ".join(failed))
    return 0


def _names(args: argparse.Namespace) -> list[str]:
    if args.all == (args.name is not None):
        raise ValueError("expected the NAME of a figure, or --all")
    if args.all:
        return list(FIGURES)
    if args.name not in FIGURES:
        raise ValueError(f"figure {args.name!r}: {_checks.nearest(args.name, FIGURES)}")
    if args.measure and FIGURES[args.name].measure is None:
        raise ValueError(f"--measure: {args.name} is drawn without measurements")
    return [args.name]


def _drawn(name: str, sources: Sources, args: argparse.Namespace) -> Path:
    figure = FIGURES[name]
    if args.measure and figure.measure is not None:
        figure.measure(sources, lambda text: print(text, file=sys.stderr))
    file = Path(args.out) if args.out else sources.store.path / "figures" / f"{name}.png"
    drawn = figure.draw(sources)
    file.parent.mkdir(parents=True, exist_ok=True)
    _write(drawn, file)
    return file


def _write(figure: Any, file: Path) -> None:
    """Writes a figure; a .png gets a palette, to be small, since it is committed with the runs."""
    if file.suffix.lower() != ".png":
        figure.savefig(file)
        return
    from PIL import Image  # noqa: PLC0415  installed with matplotlib

    whole = io.BytesIO()
    figure.savefig(whole, dpi=_DPI)
    pixels = Image.open(whole).convert("RGB")
    pixels.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


COMMAND = Command(
    _add_flags,
    _run,
    (
        "dpjax papers figure clipped-norms",
        "dpjax papers figure --all --data-dir data",
    ),
)
