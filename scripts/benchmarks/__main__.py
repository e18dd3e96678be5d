"""The command: ``python -m benchmarks``, from `scripts/bench`."""

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.check import check
from benchmarks.compiler import DEVICES, estimate_table
from benchmarks.growth import growth, growth_table
from benchmarks.jax_variants import JAX_VARIANTS
from benchmarks.measure import measure
from benchmarks.noise import noise_table
from benchmarks.tables import TITLES, result_table
from benchmarks.targets import target_table
from benchmarks.torch_client import TORCH_VARIANTS, TorchClient, missing_packages
from benchmarks.workloads import Workload, workloads

CHECK_BATCH = 4


def main() -> int:
    """Prints the tables; returns 1 if a check fails."""
    options = _parser().parse_args()
    known = workloads(options.bert_blocks)
    chosen = [known[name].with_batch(options.batch) for name in options.models]
    # A program from the cache of an earlier run would seem to compile in no time.
    jax.config.update("jax_enable_compilation_cache", False)
    if options.check:
        return _check(chosen, options)
    if options.compiler is not None:
        for workload in chosen:
            variants = [name for name in options.variants if name in JAX_VARIANTS]
            print(estimate_table(options.compiler, workload, variants), flush=True)
        return 0
    jax.jit(jnp.sum).lower(jnp.ones(3)).compile()  # the first compilation also starts the compiler
    print(f"# Gradient engines, {_versions()}\n")
    found: dict[str, Any] = {"versions": _versions(), "results": []}
    print(noise_table(options.turns), flush=True)
    if options.noise:
        return 0
    if options.growth:
        found["growth"] = growth([name for name in options.variants if name in JAX_VARIANTS])
        print(growth_table(found["growth"]))
    else:
        found["results"] = _measure(chosen, options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _measure(chosen: list[Workload], options: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    with contextlib.ExitStack() as stack:
        client = None
        if set(options.variants) & set(TORCH_VARIANTS):
            missing = missing_packages()
            if missing:
                print(
                    f"Left out: PyTorch's variants. `pip install {' '.join(missing)}` adds them.\n"
                )
            else:
                client = stack.enter_context(TorchClient())
        for workload in chosen:
            result = measure(workload, options.variants, options.turns, client, options.bert_blocks)
            print(result_table(result), flush=True)
            results.append(result)
    if options.batch is None:
        print(target_table(results))
    return [result.plain() for result in results]


def _check(chosen: list[Workload], options: argparse.Namespace) -> int:
    variants = [name for name in options.variants if name in JAX_VARIANTS]
    right = True
    for workload in chosen:
        table, agrees = check(workload.with_batch(options.batch or CHECK_BATCH), variants)
        print(table, flush=True)
        right = right and agrees
    return 0 if right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bench", description="Times private steps side by side.")
    models, variants = list(workloads()), list(TITLES)
    add = parser.add_argument
    add("--models", type=_several(models), default=models, help=f"of {','.join(models)}")
    add("--variants", type=_several(variants), default=variants, help=f"of {','.join(variants)}")
    add("--turns", type=int, default=7, help="how often each variant has its turn")
    add("--batch", type=int, help="another batch for all models, for a quick look: no targets")
    add("--bert-blocks", type=int, default=12, help="of BERT's encoder; the last is trained")
    add("--growth", action="store_true", help="only ResNet-18's temporary memory at several B")
    add("--noise", action="store_true", help="only the noise: ten million normals")
    add("--check", action="store_true", help="only whether all clipped sums agree, on 4 examples")
    add("--compiler", choices=DEVICES, help="only estimates by that platform's compiler")
    add("--json", type=Path, help="a file for all measurements")
    return parser


def _several(known: list[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}: expected some of {','.join(known)}")
        return names

    return parse


def _versions() -> str:
    packages = ["jax", "optax", "jax-privacy", "torch", "opacus"]
    found = [f"{len(os.sched_getaffinity(0))} cores"]
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


if __name__ == "__main__":
    sys.exit(main())
