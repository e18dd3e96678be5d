"""Results as Markdown tables."""

from benchmarks.results import Result

__all__ = ["BUSY", "TITLES", "markdown", "result_table"]

BUSY = 0.05  # PyTorch's threads wait for each other: sharing cores slows them down many times

TITLES = {
    "jax": "JAX, not private",
    "vmap": "dpjax, vmap",
    "ghost": "dpjax, ghost",
    "ghost_two_pass": "dpjax, ghost in two passes",
    "optax": "optax.contrib",
    "jax_privacy": "jax-privacy",
    "torch": "PyTorch, not private",
    "opacus_hooks": "Opacus, hooks",
    "opacus_functorch": "Opacus, functorch",
    "opacus_ew": "Opacus, expanded weights",
    "opacus_ghost": "Opacus, ghost",
}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Returns a table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [header, *rows]
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([text[0], "|" + "---|" * len(header), *text[1:]])


def result_table(result: Result) -> str:
    """Returns a workload's heading, its table, and the variants that were left out."""
    workload = result.workload
    heading = f"## {workload.title}, B = {workload.batch} ({result.parameters:,} trained)"
    header = ["variant", "ms", "/ not private in JAX", "ghost is x faster", "compile s", "temp MB"]
    names = [name for name in TITLES if name in result.seconds]
    parts = [heading, markdown(header, [_row(result, name) for name in names])]
    parts.append(
        f"Other processes used {result.others:.0%} of the cores meanwhile.{_advice(result)}"
    )
    parts += [f"Left out: {TITLES[name]} ({why})." for name, why in result.left_out.items()]
    return "\n\n".join(parts) + "\n"


def _advice(result: Result) -> str:
    return "" if result.others < BUSY else " THAT IS TOO MUCH: run it again on an idle machine."


def _row(result: Result, name: str) -> list[str]:
    compile_seconds = result.compile_seconds.get(name)
    temp = result.temp_bytes.get(name)
    return [
        TITLES[name],
        f"{result.milliseconds(name):.1f}",
        _number(result.time_ratio(name, "jax")),
        _number(None if name == "ghost" else result.time_ratio(name, "ghost")),
        _number(compile_seconds, 1),
        _number(None if temp is None else temp / 1e6, 1),
    ]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"
