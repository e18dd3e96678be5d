"""Times a private step of BERT-base with and without cached states of the frozen blocks.

    python scripts/bench_frozen_prefix.py [--rows 8] [--length 128] [--repeats 3]

Weights are random, because the cost does not depend on them. CPU seconds of all threads are printed
next to wall-clock seconds, because they are meaningful even on a busy machine.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax import models

TRAINED = ["blocks/-1", "pooler", "classifier"]


def measured(program, arguments, repeats):
    """Returns the minimum wall and CPU seconds of a call, after a first call that compiles."""
    jax.block_until_ready(program(*arguments))
    best = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(program(*arguments))
        best.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(w for w, _ in best), min(c for _, c in best)


def main():
    """Times both steps and prints their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    network = models.build("bert", (args.length,), 2, 30_522, separator=102)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.02, leaf.shape), "f4"), shapes)
    tokens = jnp.asarray(rng.integers(1, 30_000, (args.rows, args.length)), jnp.int32)
    labels = jnp.arange(args.rows) % 2
    halves = models.cut(network, params, models.first_trained_block(params, TRAINED))
    mechanism = dpjax.methods.auto_s(1.0)
    tx = dpjax.privatize(mechanism, args.rows, jax.random.key(0))

    def step(own, trained, frozen, x):
        def loss(trained, example):
            return own.loss(models.Parameters(trained, frozen).merged(), *example)

        grads = dpjax.per_example_grads(loss, engine="ghost")(trained, (x, labels))
        return tx.update(grads, tx.init(trained), trained)[0]

    states = jax.jit(jax.vmap(halves.prefix.apply, (None, 0)))(halves.prefix_params, tokens)
    print("                    wall s    CPU s")
    seconds = {}
    for name, own, own_params, x in (
        ("whole network", network, params, tokens),
        ("cached states", halves.suffix, halves.suffix_params, states),
    ):
        trained, frozen = models.split(own_params, TRAINED)
        program = jax.jit(lambda t, f, x, own=own: step(own, t, f, x))
        seconds[name] = measured(program, (trained, frozen, x), args.repeats)
        print(f"{name:18s} {seconds[name][0]:8.3f} {seconds[name][1]:8.3f}", flush=True)
    ratio = [a / b for a, b in zip(seconds["whole network"], seconds["cached states"], strict=True)]
    print(f"ratio              {ratio[0]:8.2f} {ratio[1]:8.2f}")


if __name__ == "__main__":
    main()
