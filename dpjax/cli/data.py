"""``dpjax data``: lists data sets, checks their files, and downloads them."""

import argparse
import sys
from pathlib import Path
from typing import Any

from dpjax import data
from dpjax.cli import printing
from dpjax.cli.command import Command, Group

__all__ = ["GROUP"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="holds one folder for each data set; $DPJAX_DATA, else ~/.cache/dpjax",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run_list(args: argparse.Namespace) -> int:
    rows = [_listed(source, args.data_dir) for source in data.DATASETS.values()]
    header = ("name", "data set", "train", "test", "read from", "present")
    keys = ("name", "title", "train", "test", "folder", "present")
    cells = [[_cell(row[key]) for key in keys] for row in rows]
    printing.show(args.json, printing.table(header, cells), {"datasets": rows})
    return 0


def _listed(source: data.Source, data_dir: str | None) -> dict[str, Any]:
    folder = _folder(source, data_dir)
    there = [_is_there(entry, folder) for entry in source.files]
    train, test = source.examples
    return {
        "name": source.name,
        "title": source.title,
        "train": train,
        "test": test,
        "classes": source.classes,
        "folder": str(folder) if source.files else None,
        "present": "yes" if all(there) else "in part" if any(there) else "no",
        "addresses": list(source.addresses),
        "notes": source.notes,
    }


def _is_there(entry: data.File | data.Folder, folder: Path) -> bool:
    """Returns whether a file is present, without reading it."""
    if isinstance(entry, data.File):
        return entry.present(folder) is not None
    return (folder / entry.path).is_dir()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _add_check_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets; all if none is named")
    _add_flags(parser)


def _run_check(args: argparse.Namespace) -> int:
    sources = [data.source_of(name) for name in args.names or data.DATASETS]
    found = [
        (source, data.status(entry, _folder(source, args.data_dir)))
        for source in sources
        for entry in source.files
    ]
    cells = [[source.name, str(one.path), _state(one)] for source, one in found]
    plain = [
        {"name": source.name, "file": str(one.path), "state": one.state, "detail": one.detail}
        for source, one in found
    ]
    text = printing.table(("data set", "file", "state"), cells) if cells else "no files needed"
    # A data set that was not named may be missing.
    bad = any(not one.good and (args.names or not one.missing) for _, one in found)
    printing.show(args.json, text, {"files": plain, "good": not bad})
    return int(bad)


def _state(status: data.Status) -> str:
    return f"{status.state} ({status.detail})" if status.detail else status.state


def _add_fetch_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a data set")
    parser.add_argument(
        "--from",
        dest="mirror",
        metavar="URL",
        help="a mirror: the address under which the files lie by their own names",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to wait for an answer; 30",
    )
    _add_flags(parser)


def _run_fetch(args: argparse.Namespace) -> int:
    # Only a terminal can update a line in place.
    shown = _show_progress if sys.stderr.isatty() else None
    new = data.fetch(args.name, args.data_dir, args.mirror, args.timeout, shown)
    lines = [f"{path}: new, verified" for path in new]
    text = "\n".join(lines) or f"{data.source_of(args.name).title}: nothing is missing"
    printing.show(args.json, text, {"name": args.name, "new": [str(path) for path in new]})
    return 0


def _show_progress(name: str, done: int, total: int | None) -> None:
    share = f" of {total / 1e6:.1f} MB, {done / total:.0%}" if total else " MB"
    end = "\n" if done == total else ""
    print(f"\r{name}: {done / 1e6:.1f}{share}", end=end, file=sys.stderr, flush=True)


def _folder(source: data.Source, data_dir: str | None) -> Path:
    return data.data_directory(data_dir) / (source.folder or "")


GROUP = Group(
    {
        "list": ("the data sets, and which are present", Command(_add_flags, _run_list)),
        "check": (
            "compare files with their published checksums",
            Command(_add_check_flags, _run_check),
        ),
        "fetch": (
            "download what is missing; continues interrupted downloads",
            Command(_add_fetch_flags, _run_fetch),
        ),
    },
)
