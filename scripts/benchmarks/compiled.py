"""Cost estimates from the text of a compiled program, for a platform that is not present.

The text names the program's computations, loops and branches. A TPU's compiler adds its estimate of
cycles to each operation. A GPU's does not, so a roofline is used instead: the larger of the time to
move an operation's bytes and the time for its products.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["H100", "Cost", "Roofline", "cost_of"]

_SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_SIZES |= {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}
_SHAPE = re.compile(rf"\b({'|'.join(_SIZES)})\[([\d,]*)\]")
_OPERATION = re.compile(r"(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)(.*)")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
# Operations that launch nothing.
_FREE = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "iota", "after-all"}
# A lookup in a table larger than this does not read the whole table.
_TABLE_BYTES = 30e6


@dataclass(frozen=True)
class Cost:
    """An estimate, comparable only with others for the same platform.

    Attributes:
        usual: every conditional takes its cheapest branch.
        careful: every conditional takes its most expensive branch, and a loop of unknown length
            runs once.
    """

    usual: float
    careful: float


@dataclass(frozen=True)
class Roofline:
    """A GPU's limits.

    Attributes:
        bandwidth: bytes per second.
        products: operations per second of matrix products with rounded factors.
        float32: operations per second of matrix products with float32 factors.
        launch: the minimum seconds that a kernel takes.
        branch: the seconds that a conditional takes in addition to its branch.
    """

    bandwidth: float
    products: float
    float32: float
    launch: float
    branch: float

    def seconds(self, operation: "_Operation", program: "_Program") -> float:
        """Returns the time of one operation; arithmetic outside of products is not counted."""
        if operation.name in _FREE or operation.name.endswith("-done"):
            return 0.0
        rate = self.float32 if re.search("highest", operation.line, re.I) else self.products
        moved = _moved(operation, program) / self.bandwidth
        return max(moved, _multiplications(operation) / rate) + self.launch


H100 = Roofline(3.35e12, 400e12, 60e12, 2e-6, 10e-6)


@dataclass(frozen=True)
class _Operation:
    """One line of a computation."""

    line: str
    result: str
    name: str
    operands: list[str]

    def called(self, key: str) -> str | None:
        found = re.search(rf"{key}=%?([\w.\-]+)", self.line)
        return found.group(1) if found else None


@dataclass(frozen=True)
class _Program:
    computations: dict[str, list[_Operation]]
    entry: str


def cost_of(text: str, roofline: Roofline | None) -> Cost:
    """Estimates a compiled program from its text.

    Args:
        text: the program's text.
        roofline: the platform's limits; None to read the compiler's own estimates of cycles.
    """
    program = _parsed(text)
    return Cost(_total(program, roofline, min), _total(program, roofline, max))


def _parsed(text: str) -> _Program:
    computations: dict[str, list[_Operation]] = {}
    entry, shapes, current = "", {}, None
    for line in text.splitlines():
        if (begun := _COMPUTATION.match(line)) is not None:
            current, shapes = begun.group(2), {}
            computations[current] = []
            entry = current if begun.group(1) else entry
        elif current is not None and (found := _OPERATION.match(line.strip())) is not None:
            name, result, kind, operands, _ = found.groups()
            shapes[name] = result
            own = [
                shapes.get(each.strip().split(" ")[-1].lstrip("%"), "")
                for each in operands.split(",")
            ]
            computations[current].append(_Operation(line.strip(), result, kind, own))
    return _Program(computations, entry)


def _total(
    program: _Program, roofline: Roofline | None, pick: Callable[[Iterable[float]], float]
) -> float:
    known: dict[str, float] = {}

    def of(name: str | None) -> float:
        if name is None or name not in program.computations:
            return 0.0
        if name not in known:
            known[name] = sum(map(one, program.computations[name]))
        return known[name]

    def one(operation: _Operation) -> float:
        if operation.name == "while":
            each = of(operation.called("body")) + (roofline.launch if roofline else 0.0)
            return _turns(operation, program) * each
        if operation.name == "conditional":
            return pick(map(of, _branches(operation))) + (roofline.branch if roofline else 0.0)
        if operation.name == "call":
            return of(operation.called("to_apply"))
        if roofline is not None:
            return roofline.seconds(operation, program)
        cycles = re.search(r'estimated_cycles":"(\d+)"', operation.line)
        return float(cycles.group(1)) if cycles else 0.0

    return of(program.entry)


def _turns(operation: _Operation, program: _Program) -> int:
    """Returns a loop's number of iterations, from the compiler or the limit in its condition."""
    known = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', operation.line)
    if known:
        return int(known.group(1))
    condition = program.computations.get(operation.called("condition") or "", [])
    inner = [each.called("calls") for each in condition]
    lines = [*condition, *(x for name in inner if name for x in program.computations.get(name, []))]
    limits = [int(x) for each in lines for x in re.findall(r"constant\((\d+)\)", each.line)]
    return max(limits, default=1)


def _branches(operation: _Operation) -> list[str]:
    several = re.search(r"branch_computations=\{([^}]*)\}", operation.line)
    if several:
        return [name.strip().lstrip("%") for name in several.group(1).split(",")]
    return [operation.called(f"{side}_computation") or "" for side in ("false", "true")]


def _bytes(shape: str) -> int:
    return sum(_SIZES[kind] * _product(sizes) for kind, sizes in _SHAPE.findall(shape))


def _product(sizes: str) -> int:
    return math.prod(int(size) for size in sizes.split(",") if size)


def _dimensions(shape: str) -> list[int]:
    found = _SHAPE.search(shape)
    return [int(size) for size in found.group(2).split(",") if size] if found else []


def _moved(operation: _Operation, program: _Program) -> float:
    """Returns the bytes read and written; of a table or buffer, only the part that is used."""
    operands = [_bytes(shape) for shape in operation.operands]
    inside = program.computations.get(operation.called("calls") or "", [operation])
    names = {each.name for each in inside}
    result = _bytes(operation.result)
    if operation.name == "custom-call":  # a library's workspace does not count
        result = _bytes(re.sub(r", [su]8\[\d+\]\{0\}\)", ")", operation.result))
    if "gather" in names and max(operands) > _TABLE_BYTES:
        operands.remove(max(operands))
    if names & {"dynamic-slice", "dynamic-update-slice"}:
        every = [*operands, result]
        small = [size for size in every if size < max(every) / 4]
        return sum(small) if small else sum(small) + max(every)
    return sum(operands) + result


def _multiplications(operation: _Operation) -> float:
    """Returns the floating-point operations of a matrix product or a convolution; 0 for others."""
    target = re.search(r'custom_call_target="([^"]+)"', operation.line)
    kind = target.group(1) if target else operation.name
    if "gemm" in kind or "cublas" in kind or kind == "dot":
        named = r'lhs_contracting_dim(?:ension)?s(?:"?:\[|=\{)([\d",]*)'
        axes = [
            int(x) for x in re.findall(r"\d+", (re.search(named, operation.line) or ["", ""])[1])
        ]
        left = _dimensions(operation.operands[0])
        contracted = math.prod(left[axis] for axis in axes if axis < len(left))
        return 2.0 * math.prod(_dimensions(operation.result)) * contracted
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", operation.line)
    if "conv" not in kind or labels is None:
        return 0.0
    image, kernel, out = (_dimensions(x) for x in [*operation.operands[:2], operation.result])
    if "Filter" in kind:  # the gradient with respect to the kernel, from image and cotangent
        kernel, out = out, kernel
    elif "Input" in kind:
        out = image
    if not kernel or not out:
        return 0.0
    return 2.0 * math.prod(out) * math.prod(kernel) / kernel[labels.group(2).index("o")]
