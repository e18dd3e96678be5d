"""Reads a compiled program's text: how many bytes its devices send each other."""

import math
import re
from collections import Counter

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all"
_COLLECTIVE = re.compile(rf"= (?P<result>.*?) (?P<kind>{_KINDS})(-start)?\((?P<operands>.*?)\),")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_CALLED = re.compile(
    r"(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


def collective_bytes(
    compiled: str, trips: int | None = None, branches=min, trips_in_branches: int | None = None
) -> Counter[str]:
    """Returns the bytes that one run of a program moves in collectives, by kind.

    Those of a collective are the larger of its result and its operands, on one device. A loop's
    body counts once per turn.

    Args:
        compiled: ``jitted.lower(...).compile().as_text()``.
        trips: how often loops run whose number of turns depends on data.
        branches: which branch of a conditional counts, by its bytes: `min` for the usual path,
            `max` for the one that rows with extreme norms take.
        trips_in_branches: the same as `trips`, for loops inside a branch.
    """
    computations, entry = _computations(compiled)
    return _bytes_in(entry, computations, (trips, trips_in_branches), branches)


def _computations(compiled: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in compiled.splitlines():
        if match := _COMPUTATION.match(line):
            lines = found.setdefault(match["name"], [])
            entry = match["name"] if match["entry"] else entry
        elif " = " in line:
            lines.append(line)
    return found, entry


def _bytes_in(name, computations, trips, branches, in_branch=False) -> Counter[str]:
    inside = lambda each, deeper=in_branch: _bytes_in(  # noqa: E731
        each, computations, trips, branches, deeper
    )
    total: Counter[str] = Counter()
    for line in computations[name]:
        if match := _COLLECTIVE.search(line):
            sizes = [_size(match["result"]), _size(match["operands"])]
            total[match["kind"]] += max(sizes)
            continue  # what it calls adds two numbers
        if " conditional(" in line:
            listed = _BRANCHES.search(line)
            names = re.findall(r"[\w.-]+", listed[1]) if listed else _CALLED.findall(line)
            total += branches((inside(each, True) for each in names), key=Counter.total)
            continue
        called = sum((inside(each) for each in _CALLED.findall(line)), Counter())
        if called and " while(" in line:
            turns = _TRIPS.search(line)
            times = int(turns[1]) if turns else trips[in_branch]
            if times is None:
                raise ValueError(f"a loop of unknown length holds a collective: {line.strip()}")
            called = Counter({kind: times * size for kind, size in called.items()})
        total += called
    return total


def _size(shapes: str) -> int:
    """Returns the bytes of all arrays whose types a text names."""
    return sum(
        _BYTES[dtype] * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shapes)
    )
