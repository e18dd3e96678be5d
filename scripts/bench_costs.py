"""Checks the choices of the ghost engine's cost model: python scripts/bench_costs.py.

For single layers, it times the norms and the weighted sum of all examples without forming their
gradients (from inner products, or from the rows that were looked up) and by forming them, in turns,
and prints the model's estimates next to the times. The last column is the time of the model's
choice relative to the better one. The constants in dpjax/gradients/ghost/planner.py were fitted to
this table on 2 cores.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.ghost.engine import book_kept
from dpjax.gradients.ghost.planner import Block, blocks_of, lookup_costs, site_costs
from dpjax.gradients.ghost.trace import analysed
from dpjax.gradients.ghost.work import Work
from dpjax.gradients.groups import group_index
from dpjax.gradients.rows import batch_rows


@dataclass(frozen=True)
class Layer:
    """One layer with one parameter: its loss, and the shapes of parameter and example."""

    label: str
    batch: int
    apply: Callable[[Any, Any], Any]
    kernel: tuple[int, ...]
    example: tuple[int, ...]
    tokens: int = 0  # if not 0, examples are indices below this

    def loss(self, kernel: Any, x: Any) -> Any:
        """Returns a loss whose cotangents differ by position, with no auxiliary output."""
        return jnp.sum(jnp.tanh(self.apply(kernel, x))), ()

    def data(self) -> tuple[jax.Array, jax.Array]:
        """Returns a parameter and a batch."""
        key = jax.random.key(0)
        shape = (self.batch, *self.example)
        kernel = 0.05 * jax.random.normal(key, self.kernel)
        if self.tokens:
            return kernel, jax.random.randint(key, shape, 0, self.tokens)
        return kernel, jax.random.normal(key, shape)


def conv(batch: int, size: int, inputs: int, outputs: int, window: int, stride: int) -> Layer:
    """A convolution over a square image."""

    def apply(kernel: Any, x: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x[None], kernel, (stride, stride), "SAME", dimension_numbers=layout
        )

    label = f"conv {window}x{window}/{stride}, {size}x{size}x{inputs} to {outputs}"
    return Layer(label, batch, apply, (window, window, inputs, outputs), (size, size, inputs))


def dense(batch: int, positions: int, inputs: int, outputs: int) -> Layer:
    """A linear layer applied at some positions."""
    label = f"dense {inputs} to {outputs}, T = {positions}"
    return Layer(label, batch, lambda w, x: x @ w, (inputs, outputs), (positions, inputs))


def lookup(batch: int, positions: int, rows: int, width: int) -> Layer:
    """An embedding table."""
    label = f"embedding {rows} x {width}, T = {positions}"
    return Layer(label, batch, lambda w, x: w[x], (rows, width), (positions,), rows)


LAYERS = [
    conv(256, 28, 1, 16, 8, 2),
    conv(256, 13, 16, 32, 4, 2),
    conv(16, 32, 3, 64, 3, 1),
    conv(16, 32, 64, 64, 3, 1),
    conv(16, 32, 64, 128, 3, 2),
    conv(16, 16, 128, 128, 3, 1),
    conv(16, 8, 256, 256, 3, 1),
    conv(16, 4, 512, 512, 3, 1),
    dense(256, 1, 512, 32),
    dense(256, 15, 128, 512),
    dense(32, 128, 256, 256),
    dense(32, 128, 256, 1024),
    dense(8, 128, 768, 3072),
    lookup(256, 15, 57, 64),
    lookup(32, 128, 1000, 256),
]


def forced(work: Work, block: Block) -> Callable[[Any, Any], Any]:
    """Returns a function that computes norms and weighted sum by the block's method."""

    def run(kernel: Any, passed: Any) -> Any:
        chunk = book_kept(replace(work, leaves=[kernel], blocks=[block], passed=passed))
        index = group_index(None, kernel)
        norms = chunk.norms(index)
        return chunk.weighted_sum(1 / (1 + norms), norms, index)

    return jax.jit(run)


def measured(layer: Layer, turns: int) -> dict[str, float]:
    """Returns the median milliseconds of each method, timed in turns."""
    kernel, batch = layer.data()
    work = Work.begun(layer.loss, kernel, batch_rows(batch, None, None).all(), None)
    (block,) = work.blocks
    ways = ("rows" if layer.tokens else "gram", "form")
    methods = {name: forced(work, replace(block, method=name)) for name in ways}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(turns + 1):
        for name, run in methods.items():
            begun = time.perf_counter()
            jax.block_until_ready(run(kernel, work.passed))
            times[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def blocks_of_layer(layer: Layer) -> list[Block]:
    """Returns the single block of a layer, as a list."""
    kernel, batch = layer.data()
    return blocks_of(analysed(layer.loss, kernel, batch[0]))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Compares the cost model with measurements.")
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    print("| layer | B | without ms | formed ms | estimated ratio | measured | choice | costs x |")
    print("|---|---|---|---|---|---|---|---|")
    for layer in LAYERS:
        (block,) = blocks_of_layer(layer)
        cost = (lookup_costs if layer.tokens else site_costs)(block.sites[0])
        found = measured(layer, turns)
        without, form = found.values()
        cells = [layer.label, str(layer.batch), f"{without:.1f}", f"{form:.1f}"]
        cells += [f"{cost.without / cost.form:.2f}", f"{without / form:.2f}"]
        cells += [block.method, f"{found[block.method] / min(found.values()):.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
