"""The cost of compiling private and non-private steps: python scripts/bench_compile.py.

It is measured in CPU seconds of this process on all cores, for tracing, for lowering to StableHLO
and for XLA's compiler, each the minimum over some turns. Other work on the machine affects CPU
seconds less than wall-clock time. Every turn begins with empty caches, and no step is run.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import dpjax
from dpjax import models

Logits = Callable[[Any, jax.Array], jax.Array]


@dataclass(frozen=True)
class Case:
    """A network, the shape of its batch, and the engine of its private step.

    Attributes:
        title: its title in the table.
        engine: the engine of `dpjax.per_example_grads`.
        build: returns the parameters and the logits function of one example.
        shape: the shape of a batch.
    """

    title: str
    engine: str
    build: Callable[[], tuple[Any, Logits]]
    shape: tuple[int, ...]


def mlp() -> tuple[Any, Logits]:
    """Three dense layers."""
    sizes = (20, 32, 32, 10)
    return _layers(sizes), _dense


def dense_layers() -> tuple[Any, Logits]:
    """24 dense layers of the same width, written out one after another."""
    return _layers((128,) * 25), _dense


def encoder_blocks() -> tuple[Any, Logits]:
    """24 blocks of attention and a dense layer, written out one after another."""
    width, inner = 64, 128
    kernels = {"qkv": (width, 3 * width), "out": (width, width)}
    kernels |= {"up": (width, inner), "down": (inner, width)}

    def block(key: jax.Array) -> Any:
        keys = dict(zip(kernels, jax.random.split(key, len(kernels)), strict=True))
        found = {name: _layer(keys[name], *shape) for name, shape in kernels.items()}
        norms = {name: {"w": jnp.ones(width), "b": jnp.zeros(width)} for name in ("n1", "n2")}
        return found | norms

    def normed(p: Any, x: jax.Array) -> jax.Array:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * p["w"] + p["b"]

    def affine(p: Any, x: jax.Array) -> jax.Array:
        return x @ p["w"] + p["b"]

    def logits(params: Any, x: jax.Array) -> jax.Array:
        for p in params:
            parts = affine(p["qkv"], normed(p["n1"], x)).reshape(len(x), 3, 4, -1)
            query, key, value = (parts[:, i] for i in range(3))
            weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", query, key) / 4.0)
            mixed = jnp.einsum("hqk,khd->qhd", weights, value).reshape(x.shape)
            x = x + affine(p["out"], mixed)
            x = x + affine(p["down"], jax.nn.gelu(affine(p["up"], normed(p["n2"], x))))
        return jnp.mean(x, axis=0)[:10]

    return [block(key) for key in jax.random.split(jax.random.key(0), 24)], logits


def network(name: str, shape: tuple[int, ...], **options: str) -> tuple[Any, Logits]:
    """A network of `dpjax.models`."""
    built = models.build(name, shape, 10, None, **options)
    return jax.jit(built.init)(jax.random.key(0)), built.apply


CASES = {
    "mlp": Case("MLP of 3 layers, B = 32, vmap", "vmap", mlp, (32, 20)),
    "mlp_ghost": Case("the same, ghost", "ghost", mlp, (32, 20)),
    "cnn": Case(
        "CNN of 26,010 parameters, B = 32",
        "ghost",
        lambda: network("small_cnn", (28, 28, 1)),
        (32, 28, 28, 1),
    ),
    "dense24": Case("24 dense layers of width 128, B = 16", "ghost", dense_layers, (16, 128)),
    "encoder24": Case(
        "24 encoder blocks of width 64, T = 32", "ghost", encoder_blocks, (8, 32, 64)
    ),
    "resnet18": Case(
        "ResNet-18-GN, B = 16",
        "ghost",
        lambda: network("resnet18", (32, 32, 3), stem="cifar"),
        (16, 32, 32, 3),
    ),
}


def _layer(key: jax.Array, inputs: int, outputs: int) -> Any:
    return {"w": 0.1 * jax.random.normal(key, (inputs, outputs)), "b": jnp.zeros(outputs)}


def _layers(sizes: tuple[int, ...]) -> Any:
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    return [_layer(*each) for each in zip(keys, sizes[:-1], sizes[1:], strict=True)]


def _dense(params: Any, x: jax.Array) -> jax.Array:
    for p in params[:-1]:
        x = jnp.tanh(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def step_of(case: Case, private: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a step, private or not, and its arguments."""
    params, logits = case.build()
    size = case.shape[0]

    def loss(params: Any, example: Any) -> jax.Array:
        x, y = example
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y)

    if private:
        mechanism = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)
        grads_of: Any = dpjax.per_example_grads(loss, engine=case.engine)
        tx: Any = optax.chain(
            dpjax.privatize(mechanism, size, jax.random.key(1)), optax.sgd(0.1, momentum=0.9)
        )
    else:
        mean = lambda params, batch: jnp.mean(jax.vmap(loss, (None, 0))(params, batch))  # noqa: E731
        grads_of, tx = jax.grad(mean), optax.sgd(0.1, momentum=0.9)

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads_of(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    x = jax.random.normal(jax.random.key(2), case.shape)
    return step, (params, tx.init(params), (x, jnp.arange(size) % 10))


def seconds(step: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float, float]:
    """Returns the CPU seconds of tracing, lowering and compiling."""
    jax.clear_caches()
    times = [time.process_time()]
    traced = jax.jit(step).trace(*arguments)
    times.append(time.process_time())
    lowered = traced.lower()
    times.append(time.process_time())
    lowered.compile()
    times.append(time.process_time())
    trace, lower, compiled = (b - a for a, b in itertools.pairwise(times))
    return trace, lower, compiled


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Measures how long steps take to compile.")
    parser.add_argument("--turns", type=int, default=2, help="of which the fastest counts")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=CASES)
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    print(
        "| CPU s | trace | lower | compile | all | private: trace | lower | compile | all | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in args.only:
        cells, totals = [], []
        for private in (False, True):
            step, arguments = step_of(CASES[name], private)
            found = min((seconds(step, arguments) for _ in range(args.turns)), key=sum)
            totals.append(sum(found))
            cells += [f"{part:.2f}" for part in (*found, totals[-1])]
        row = [CASES[name].title, *cells, f"{totals[1] / totals[0]:.1f}"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
