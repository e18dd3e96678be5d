"""Estimates of a step's cost from the compiler of an accelerator that is not present."""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.compiled import H100, Cost, cost_of
from benchmarks.jax_variants import JAX_VARIANTS, LeftOut
from benchmarks.problem import Problem, problem
from benchmarks.tables import TITLES, markdown
from benchmarks.workloads import LEARNING_RATE, SIGMA, Workload

__all__ = ["DEVICES", "estimate_table"]

DEVICES = {"tpu": "TPU v5e", "cuda": "H100"}

# What the CUDA compiler would otherwise query from the device.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def estimate_table(compiler: str, workload: Workload, variants: list[str]) -> str:
    """Returns a table of a platform compiler's estimates for the steps of a workload."""
    built, device = problem(workload), _device(compiler)
    _compiled(compiler, device, jnp.sum, (jnp.ones(3),))  # the first compilation also starts it
    rows, found = [], {}
    for name in ["jax", *(name for name in variants if name != "jax")]:
        try:
            print(f"Compiling {name} of {workload.name} ...", file=sys.stderr, flush=True)
            found[name] = _estimate(compiler, device, name, built)
        except LeftOut as why:
            rows.append([TITLES[name], f"left out: {why}", "", "", "", "", ""])
    base, base_peak, base_seconds = found["jax"]
    for name, (cost, peak, seconds) in found.items():
        rows.append(
            [
                TITLES[name],
                f"{cost.usual / base.usual:.2f}",
                f"{cost.careful / cost.usual:.2f}",
                f"{peak / base_peak:.2f}",
                f"{peak / 1e6:.1f}",
                f"{seconds:.1f}",
                f"{seconds / base_seconds:.1f}",
            ]
        )
    heading = f"## {workload.title}, B = {workload.batch}: ESTIMATES for a {DEVICES[compiler]}"
    header = ["variant", "cost / not private", "careful / usual", "peak / not private", "peak MB"]
    header += ["compile s (CPU)", "/ not private"]
    note = (
        f"Not times: the compiler for a {DEVICES[compiler]} was asked, and nothing ran. 'Careful' "
        "is the step in which every branch takes its more expensive side."
    )
    return f"{heading}\n\n{markdown(header, rows)}\n\n{note}\n"


def _estimate(compiler: str, device: Any, name: str, built: Problem) -> tuple[Cost, int, float]:
    """Returns the cost, the peak memory in bytes, and the CPU seconds of compiling."""
    variant = JAX_VARIANTS[name](len(built.examples[1]), SIGMA)
    tx = optax.chain(variant.privatizer, optax.sgd(LEARNING_RATE))

    def step(params: Any, state: Any, frozen: Any, batch: Any) -> tuple[Any, Any]:
        gradients = variant.gradients(built.loss_of(frozen), params, batch)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.tree.map(jnp.copy, tx.init(built.params))
    begun = time.process_time()
    arguments = (built.params, state, built.frozen, built.examples)
    compiled = _compiled(compiler, device, step, arguments, donate_argnums=(0, 1))
    seconds = time.process_time() - begun
    cost = cost_of(compiled.as_text(), H100 if compiler == "cuda" else None)
    return cost, compiled.memory_analysis().peak_memory_in_bytes, seconds


def _compiled(compiler: str, device: Any, fn: Any, arguments: Any, **options: Any) -> Any:
    here = SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), arguments
    )
    jitted = jax.jit(fn, in_shardings=here, out_shardings=here, **options)
    return jitted.trace(*shapes).lower(lowering_platforms=(compiler,)).compile()


def _device(compiler: str) -> Any:
    """Returns a device for which programs can be compiled but not run."""
    if compiler == "tpu":
        described = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    else:
        _name_cuda()
        described = topologies.get_topology_desc(
            topology_name="h100", platform="cuda", target_config=_H100, topology="1x1x1"
        )
    return described.devices[0]


def _name_cuda() -> None:
    """Makes JAX accept CUDA as a platform's name, which it otherwise does only if it has a GPU."""
    from jax._src import xla_bridge  # noqa: PLC0415

    jax.devices("cpu")  # makes JAX look for plugins now
    known = xla_bridge.canonicalize_platform

    def canonical(name: str) -> str:
        try:
            return known(name)
        except RuntimeError:
            return "cuda" if name in ("gpu", "cuda") else name

    xla_bridge.canonicalize_platform = canonical
