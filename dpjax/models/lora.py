"""LoRA: low-rank updates of frozen kernels, in any network, merged after training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import chex
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax.models.layers import uniform
from dpjax.models.network import Network, from_module
from dpjax.models.parameters import Params, flat, nested

__all__ = ["LoRA", "LoRALinear", "add_lora", "merge_lora"]


@dataclass(frozen=True)
class LoRA:
    """Which kernels get a low-rank update, and its rank.

    ``x W`` becomes ``x W + (alpha / rank) (x A) B`` with A (inputs, rank) and B (rank, outputs).

    Args:
        rank: the rank of the update.
        alpha: the scale of the update.
        kernels: the names of the dense layers that get an update.

    Example:
        >>> LoRA(rank=4, alpha=8.0).scale
        2.0

    Reference: Hu et al., LoRA, 2021, https://arxiv.org/abs/2106.09685.
    """

    rank: int = 8
    alpha: float = 16.0
    kernels: tuple[str, ...] = ("query", "value")

    def __post_init__(self) -> None:
        """Checks the fields."""
        _checks.integer("rank", self.rank, at_least=1)
        object.__setattr__(self, "alpha", _checks.positive("alpha", self.alpha))
        given: object = self.kernels
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise TypeError(f"kernels = {self.kernels!r}: expected names of layers, as ['query']")
        object.__setattr__(self, "kernels", tuple(self.kernels))

    @property
    def scale(self) -> float:
        """The factor of the update."""
        return self.alpha / self.rank


class LoRALinear(nnx.Linear):
    """A dense layer with a low-rank update of its kernel.

    Args:
        layer: the dense layer.
        lora: the update.
        rngs: draws A; B starts at 0, so that the output does not change at first.
    """

    def __init__(self, layer: nnx.Linear, lora: LoRA, rngs: nnx.Rngs) -> None:
        """Copies the layer's parameters and adds the update's."""
        for name, value in vars(layer).items():
            setattr(self, name, value)
        inputs, outputs = layer.kernel[...].shape
        start = uniform(inputs)
        self.scale = lora.scale
        self.lora_a = nnx.Param(start(rngs.params(), (inputs, lora.rank)))
        self.lora_b = nnx.Param(jnp.zeros((lora.rank, outputs)))

    def __call__(self, inputs: chex.Array, *args: object, **kwargs: object) -> chex.Array:
        """Returns the layer's output plus the update's."""
        update = (inputs @ self.lora_a[...]) @ self.lora_b[...]
        return super().__call__(inputs, *args, **kwargs) + self.scale * update


def add_lora(network: Network, lora: LoRA) -> Network:
    """Returns a network with low-rank updates, ``.../lora_a`` and ``.../lora_b``, of its kernels.

    The updates are two thin products, so the ghost engine never forms a kernel's gradient. Train
    them with ``split(params, ["*/lora_*", "classifier"])``.

    Args:
        network: any network from `dpjax.models.build` with dense layers of these names.
        lora: the kernels and the rank.

    Raises:
        ValueError: if the network does not have a kernel; names it.

    Example:
        >>> from dpjax.models import build
        >>> network = add_lora(build("mlp", (8,), 2, hidden=4), LoRA(rank=1, kernels=("0",)))
        >>> network.param_count  # (8 + 1) 4 + (4 + 1) 2, and the update's 8 + 4
        58
    """
    make = network.module_of

    def adapted(rngs: nnx.Rngs) -> nnx.Module:
        module = make(rngs)
        found = [
            (path, node)
            for path, node in nnx.iter_graph(module)
            if isinstance(node, nnx.Linear) and str(path[-1]) in lora.kernels
        ]
        names = {str(path[-1]) for path, _ in found}
        for kernel in lora.kernels:
            if kernel not in names:
                known = {str(p[-1]) for p, n in nnx.iter_graph(module) if isinstance(n, nnx.Linear)}
                raise ValueError(f"kernels: {kernel!r}: {_checks.nearest(kernel, known)}")
        for path, layer in sorted(found, key=lambda item: str(item[0])):
            parent = module
            for step in path[:-1]:
                parent = _child(parent, step)
            _put(parent, path[-1], LoRALinear(layer, lora, rngs))
        return module

    return from_module(replace(network, lora=lora), adapted)


def merge_lora(params: chex.ArrayTree, lora: LoRA) -> Params:
    """Returns parameters with every update added to its kernel: ``W + (alpha / rank) A B``.

    Args:
        params: the parameters of a network with updates.
        lora: the updates.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = {"kernel": jnp.zeros((2, 2)), "lora_a": jnp.ones((2, 1)),
        ...          "lora_b": jnp.ones((1, 2))}
        >>> merge_lora({"query": layer}, LoRA(rank=1, alpha=3.0))["query"]["kernel"].tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    leaves = flat(params)
    for path in [path for path in leaves if path.endswith("/lora_a")]:
        layer = path.removesuffix("/lora_a")
        update = leaves.pop(path) @ leaves.pop(f"{layer}/lora_b")
        leaves[f"{layer}/kernel"] = leaves[f"{layer}/kernel"] + lora.scale * update
    return nested(leaves)


def _child(parent: Any, step: Any) -> nnx.Module:
    return getattr(parent, step) if hasattr(parent, str(step)) else parent[step]


def _put(parent: nnx.Module, step: Any, value: nnx.Module) -> None:
    put: Callable[[Any, nnx.Module], None] = (
        parent.__setitem__ if isinstance(parent, nnx.List) else parent.__setattr__
    )
    put(step, value)
