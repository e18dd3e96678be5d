"""Measures a workload: compiles every variant, then times all of them in turns."""

import os

from benchmarks.jax_runner import CompiledStep, JaxRunner, compile_step
from benchmarks.jax_variants import JAX_VARIANTS, LeftOut
from benchmarks.load import OthersLoad
from benchmarks.problem import Problem, problem
from benchmarks.results import Result
from benchmarks.torch_client import TorchClient, TorchRunner
from benchmarks.workloads import Workload
from dpjax.cli.bench import Timed, take_turns

__all__ = ["measure"]


def measure(
    workload: Workload,
    variants: list[str],
    turns: int,
    client: TorchClient | None,
    bert_blocks: int,
) -> Result:
    """Times the variants; without a `client`, those of PyTorch are left out."""
    built = problem(workload)
    steps, left_out = _compile(built, [name for name in variants if name in JAX_VARIANTS])
    runners: dict[str, Timed] = {name: JaxRunner(step, built) for name, step in steps.items()}
    if client is not None:
        wanted = [name for name in variants if name not in JAX_VARIANTS]
        counts, failed = client.prepare(workload, bert_blocks, wanted)
        _check_counts(workload, built, counts)
        left_out |= failed
        runners |= {name: TorchRunner(client, name) for name in wanted if name not in failed}
    load = OthersLoad([os.getpid()] if client is None else [os.getpid(), client.pid])
    seconds = take_turns(runners, turns)
    return Result(
        workload,
        built.param_count,
        seconds,
        load.share(),
        {name: step.compile_seconds for name, step in steps.items()},
        {name: step.temp_bytes for name, step in steps.items() if step.temp_bytes is not None},
        left_out,
    )


def _compile(built: Problem, names: list[str]) -> tuple[dict[str, CompiledStep], dict[str, str]]:
    steps, left_out = {}, {}
    for name in names:
        try:
            steps[name] = compile_step(name, built)
        except LeftOut as why:
            left_out[name] = str(why)
    return steps, left_out


def _check_counts(workload: Workload, built: Problem, counts: dict[str, list[int]]) -> None:
    ours = [built.param_count, built.frozen_count]
    for name, theirs in counts.items():
        if theirs != ours:
            raise RuntimeError(
                f"{workload.name}: the {name} network in PyTorch has {theirs} trained and frozen "
                f"parameters: expected {ours}, as in JAX"
            )
