"""A network as pure functions of plain parameters: what a loss and a checkpoint want."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _checks
from dpjax._imports import imported
from dpjax.gradients import refuse_batch_stats
from dpjax.models.alexnet import alexnet, alexnet_small
from dpjax.models.cnns import cnn4, lin_b1, lin_b2, lin_b3, lin_b4, small_cnn
from dpjax.models.flat import linear, mlp
from dpjax.models.nf_resnet import nf_resnet18, nf_resnet50
from dpjax.models.nfnet import nfnet_f0, nfnet_f1
from dpjax.models.recurrent import bilstm, lstm
from dpjax.models.resnet import resnet18, resnet34
from dpjax.models.resnet9 import resnet9
from dpjax.models.shapes import example_shape
from dpjax.models.transformer import bert, roberta
from dpjax.models.wide_resnet import wide_resnet

__all__ = ["MODELS", "Network", "build"]

MODELS: dict[str, Callable[..., nnx.Module]] = {
    "alexnet": alexnet,
    "alexnet_small": alexnet_small,
    "bert": bert,
    "bilstm": bilstm,
    "cnn4": cnn4,
    "lin_b1": lin_b1,
    "lin_b2": lin_b2,
    "lin_b3": lin_b3,
    "lin_b4": lin_b4,
    "linear": linear,
    "lstm": lstm,
    "mlp": mlp,
    "nf_resnet18": nf_resnet18,
    "nf_resnet50": nf_resnet50,
    "nfnet_f0": nfnet_f0,
    "nfnet_f1": nfnet_f1,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet9": resnet9,
    "roberta": roberta,
    "small_cnn": small_cnn,
    "wide_resnet": wide_resnet,
}


@dataclass(frozen=True, eq=False)
class Network:
    """A network's name and size, and its two pure functions.

    Attributes:
        name: as in `MODELS`.
        shape: of one example.
        param_count: how many numbers `init` returns.
    """

    name: str
    shape: tuple[int, ...]
    param_count: int
    _module: Callable[[nnx.Rngs], nnx.Module] = field(repr=False)
    _graph: nnx.GraphDef[Any] = field(repr=False)
    _abstract: Any = field(repr=False)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Returns initial parameters: nested dicts with names for keys, list positions too.

        ``params["blocks"]["0"]["conv1"]["kernel"]``. May be jitted and vmapped over keys.
        """
        return _named(nnx.to_pure_dict(nnx.state(self._module(nnx.Rngs(key)))))

    def apply(self, params: Mapping[str, Any], x: jax.Array) -> jax.Array:
        """Returns the logits, (classes,), of ONE example; `jax.vmap` for a batch."""
        if jnp.shape(x) != self.shape:
            raise ValueError(
                f"x has shape {jnp.shape(x)}: expected ONE example of shape {self.shape}; "
                "for a batch, jax.vmap(network.apply, in_axes=(None, 0))"
            )
        differing = _paths(params) ^ _paths(_named(nnx.to_pure_dict(self._abstract)))
        if differing:
            raise ValueError(
                f"params and {self.name} differ in {min(differing)}: expected what `init` returns"
            )
        state = jax.tree.map(lambda leaf: leaf, self._abstract)  # a copy, to be filled
        nnx.replace_by_pure_dict(state, dict(params))
        return nnx.merge(self._graph, state)(x)


def build(
    name: str,
    shape: Sequence[int],
    classes: int,
    vocabulary: int | None = None,
    **options: Any,
) -> Network:
    """Builds a network by name.

    Args:
        name: one of `MODELS`; or ``"module:Class"``, a constructor of your own that takes
            ``(shape, classes, *, rngs)`` and its options, in a module that
            `dpjax.train.allow_import` was given.
        shape: ONE example's: (height, width, channels), (length,) of tokens, or (features,).
        classes: how many logits.
        vocabulary: for text, how many tokens there are; 0 is padding.
        **options: the model's own, such as ``hidden=32``.

    Example:
        >>> build("small_cnn", (28, 28, 1), 10).param_count
        26010
        >>> network = build("mlp", (8, 8, 1), 10, hidden=32)
        >>> params = network.init(jax.random.key(0))
        >>> params["dense"]["0"]["kernel"].shape
        (64, 32)
        >>> network.apply(params, jnp.zeros((8, 8, 1))).shape
        (10,)
    """
    if ":" in name:
        model = imported("model.name", name)
    else:
        model = MODELS[_checks.choice("model", name, MODELS)]
    shape = example_shape(shape)
    classes = _checks.integer("classes", classes, at_least=1)
    _add_vocabulary(name, model, vocabulary, options)

    def module(rngs: nnx.Rngs) -> nnx.Module:
        return model(shape, classes, rngs=rngs, **options)

    return _network(name, shape, module)


def _network(
    name: str, shape: tuple[int, ...], module: Callable[[nnx.Rngs], nnx.Module]
) -> Network:
    abstract = nnx.eval_shape(lambda: module(nnx.Rngs(0)))
    refuse_batch_stats(abstract)
    graph, state = nnx.split(abstract)
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))
    return Network(name, shape, count, module, graph, state)


def _add_vocabulary(
    name: str, model: Callable[..., nnx.Module], vocabulary: int | None, options: dict[str, Any]
) -> None:
    # The signature of an NNX class is its metaclass', which takes anything.
    signature = inspect.signature(model.__init__ if inspect.isclass(model) else model)
    parameters = dict(signature.parameters)
    takes_text = parameters.pop("vocabulary", None) is not None
    known = [key for key in parameters if key not in ("self", "shape", "classes", "rngs")]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: {_checks.nearest(option, known)}")
    if takes_text:
        if vocabulary is None:
            raise ValueError(f"vocabulary = None: expected how many tokens there are, for {name}")
        options["vocabulary"] = vocabulary
    elif vocabulary is not None:
        raise ValueError(f"vocabulary = {vocabulary!r}: expected None, {name} reads no tokens")


def _paths(params: Any) -> set[str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }


def _named(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {str(key): _named(value) for key, value in tree.items()}
    return tree
