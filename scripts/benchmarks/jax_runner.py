"""A variant in JAX, compiled ahead of time, with XLA's figures for it."""

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.jax_variants import JAX_VARIANTS
from benchmarks.problem import Problem
from benchmarks.workloads import LEARNING_RATE, SIGMA

__all__ = ["CompiledStep", "JaxRunner", "compile_step"]


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step.

    Attributes:
        call: ``call(params, state, frozen, batch) -> (params, state)``.
        state: the initial state of the optimizer.
        compile_seconds: the time for tracing, lowering and compiling.
        temp_bytes: XLA's figure for its temporary memory; None if the backend gives none.
    """

    call: Any
    state: Any
    compile_seconds: float
    temp_bytes: int | None


def compile_step(name: str, problem: Problem) -> CompiledStep:
    """Compiles a variant's step for the problem's batch; parameters and state are donated."""
    variant = JAX_VARIANTS[name](len(problem.examples[1]), SIGMA)
    tx = optax.chain(variant.privatizer, optax.sgd(LEARNING_RATE))

    def step(params: Any, state: Any, frozen: Any, batch: Any) -> tuple[Any, Any]:
        gradients = variant.gradients(problem.loss_of(frozen), params, batch)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.tree.map(jnp.copy, tx.init(problem.params))
    started = time.perf_counter()
    arguments = (problem.params, state, problem.frozen, problem.examples)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments).compile()
    seconds = time.perf_counter() - started
    analysis = compiled.memory_analysis()
    temp_bytes = None if analysis is None else analysis.temp_size_in_bytes
    return CompiledStep(compiled, state, seconds, temp_bytes)


class JaxRunner:
    """A variant with its own parameters, which it updates at every turn."""

    def __init__(self, step: CompiledStep, problem: Problem) -> None:
        """Copies the parameters, because steps donate them."""
        self._step, self._problem = step, problem
        self._params = jax.tree.map(jnp.copy, problem.params)
        self._state = step.state

    def run(self, steps: int) -> float:
        """Takes some steps; returns the seconds per step."""
        jax.block_until_ready(self._params)
        started = time.perf_counter()
        for _ in range(steps):
            self._params, self._state = self._step.call(
                self._params, self._state, self._problem.frozen, self._problem.examples
            )
        jax.block_until_ready(self._params)
        return (time.perf_counter() - started) / steps
