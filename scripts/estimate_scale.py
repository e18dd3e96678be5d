"""Estimates the cost of a step on many devices from its compiled program; needs no devices.

    JAX_NUM_CPU_DEVICES=64 python scripts/estimate_scale.py

compiles a step of BERT-base for 64 devices and prints, per device, the bytes of its arguments and
temporaries, and the bytes sent over the network. The program is compiled for CPUs: on an
accelerator, temporaries differ, but collectives do not.
"""

import argparse
import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import models
from dpjax.train import Experiment, Program, RunConfig, resolve
from dpjax.train.feed import mesh_program
from dpjax.train.mesh import Layout
from dpjax.train.step import Examples

_BYTES = {"s32": 4, "u32": 4, "f32": 4, "bf16": 2, "pred": 1, "s8": 1, "u8": 1}
_COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def collectives(text: str) -> Counter[str]:
    """Returns the bytes of the results of a program's collectives, by kind."""
    found: Counter[str] = Counter()
    for shapes, kind in _COLLECTIVE.findall(text):
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            size = math.prod(int(d) for d in dims.split(",") if d)
            found[kind] += size * _BYTES.get(dtype, 4)
    return found


def main() -> None:
    """Compiles the step and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=128, help="tokens of an example")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    plain = {
        "data": {"name": "text"},
        "model": {"name": "bert"},
        "method": {"name": "dp_sgd", "noise_multiplier": 1.0},
        "optimizer": {"name": "adam"},
        "train": {
            "batch_size": args.batch,
            "steps": 1,
            "chunk": args.chunk,
            "engine": "ghost",
            "precision": "bfloat16",
        },
        "privacy": {"accountant": "rdp"},
    }
    experiment = Experiment.from_plain(plain)
    network = models.build("bert", (args.length,), 2, 30522, layers=args.layers)
    program = Program(resolve(experiment, args.examples), network)
    devices = len(jax.devices())
    layout = Layout.of(RunConfig(mesh={"data": devices}))
    rows = -(-args.examples // devices) * devices
    by_row = NamedSharding(layout.mesh, PartitionSpec("data"))
    data = Examples(
        *(
            jax.ShapeDtypeStruct((rows, *shape), jnp.int32, sharding=by_row)
            for shape in ((args.length,), (), ())
        )
    )
    state = layout.like(jax.eval_shape(program.init, jax.random.key(0)))
    lowered = mesh_program(program, 1, layout).lower(state, data, np.int32(1))
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"devices           {devices}")
    print(f"parameters        {parameters:,}")
    print(
        f"batch             {args.batch}, {args.batch / devices:g} a device, chunks of {args.chunk}"
    )
    print(f"arguments         {memory.argument_size_in_bytes / 2**20:,.0f} MiB a device")
    print(f"temporaries       {memory.temp_size_in_bytes / 2**20:,.0f} MiB a device")
    for kind, size in collectives(compiled.as_text()).items():
        print(f"{kind:17s} {size / 2**20:,.1f} MiB, {size / 4 / parameters:.2f} float32 gradients")


if __name__ == "__main__":
    main()
