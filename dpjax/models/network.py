"""A network as pure functions of plain parameters, as losses and checkpoints need it."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from dpjax import _checks
from dpjax._imports import imported
from dpjax._toml import Table
from dpjax.gradients import refuse_batch_stats
from dpjax.models.alexnet import alexnet, alexnet_small
from dpjax.models.bert import bert
from dpjax.models.cnns import cnn4, lin_b1, lin_b2, lin_b3, lin_b4, small_cnn
from dpjax.models.distilbert import distilbert
from dpjax.models.flat import linear, mlp
from dpjax.models.gpt2 import gpt2
from dpjax.models.nf_resnet import nf_resnet18, nf_resnet50
from dpjax.models.nfnet import nfnet_f0, nfnet_f1
from dpjax.models.parameters import Params
from dpjax.models.recurrent import bilstm, lstm
from dpjax.models.resnet import resnet18, resnet34
from dpjax.models.resnet9 import resnet9
from dpjax.models.roberta import roberta
from dpjax.models.shapes import example_shape
from dpjax.models.wide_resnet import wide_resnet

if TYPE_CHECKING:
    from dpjax.models.lora import LoRA

__all__ = ["MODELS", "Network", "build", "from_module"]

MODELS: dict[str, Callable[..., nnx.Module]] = {
    "alexnet": alexnet,
    "alexnet_small": alexnet_small,
    "bert": bert,
    "bilstm": bilstm,
    "cnn4": cnn4,
    "distilbert": distilbert,
    "gpt2": gpt2,
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
        name: a name in `MODELS`.
        shape: the shape of one example.
        param_count: the number of parameters.
        classes: the number of logits.
        options: the constructor's other arguments, including the vocabulary.
        lora: the low-rank updates of kernels, a `dpjax.models.LoRA`; None for none.
        module_of: makes the NNX module with initial parameters.
    """

    name: str
    shape: tuple[int, ...]
    param_count: int
    classes: int
    options: Table = field(repr=False)
    lora: "LoRA | None"
    module_of: Callable[[nnx.Rngs], nnx.Module] = field(repr=False)
    _graph: nnx.GraphDef[nnx.Module] = field(repr=False)
    _abstract: nnx.State[Any, Any] = field(repr=False)

    def init(self, key: jax.Array) -> Params:
        """Returns initial parameters as nested dicts; list positions are keys too.

        For example ``params["blocks"]["0"]["conv1"]["kernel"]``. It can be jitted and vmapped over
        keys.

        Args:
            key: draws the parameters.
        """
        return _named(nnx.to_pure_dict(nnx.state(self.module_of(nnx.Rngs(key)))))

    def apply(self, params: Params, x: chex.Array) -> jax.Array:
        """Returns the logits, (classes,), of ONE example; use `jax.vmap` for a batch.

        A language model's logits are (length, vocabulary). The parts of a network that was cut at a
        block return or take states, (length, width).

        Args:
            params: the parameters, as `init` returns them.
            x: ONE example.
        """
        self._check_example(x)
        return self.module(params)(x)

    def loss(self, params: Params, x: chex.Array, y: chex.Array) -> jax.Array:
        """Returns the loss of ONE example: the cross-entropy of its label, or the network's own.

        Args:
            params: the parameters.
            x: the example.
            y: its class; for a language model, the length of the prompt in `x`.
        """
        self._check_example(x)
        module = self.module(params)
        own = getattr(module, "loss", None)
        if own is not None:
            return own(x, y)
        return optax.softmax_cross_entropy_with_integer_labels(module(x), y)

    def module(self, params: Params) -> nnx.Module:
        """Returns the NNX module with these parameters.

        Args:
            params: the parameters, as `init` returns them.

        Raises:
            ValueError: if the parameters are those of another network; names one that differs.
        """
        differing = _paths(params) ^ _paths(_named(nnx.to_pure_dict(self._abstract)))
        if differing:
            raise ValueError(
                f"params and {self.name} differ in {min(differing)}: expected what `init` returns"
            )
        state = jax.tree.map(lambda leaf: leaf, self._abstract)  # a copy to fill
        nnx.replace_by_pure_dict(state, dict(params))
        return nnx.merge(self._graph, state)

    def _check_example(self, x: chex.Array) -> None:
        if jnp.shape(x) != self.shape:
            raise ValueError(
                f"x has shape {jnp.shape(x)}: expected ONE example of shape {self.shape}; "
                "for a batch, jax.vmap(network.apply, in_axes=(None, 0))"
            )


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
            `dpjax.train.allow_import` allowed.
        shape: the shape of ONE example: (height, width, channels), (length,) of tokens, or
            (features,).
        classes: the number of logits.
        vocabulary: for text, the number of tokens; 0 is padding.
        **options: the model's own options, such as ``hidden=32``.

    Returns:
        The network; it has no parameters yet, `Network.init` makes them.

    Raises:
        ValueError: if there is no such model, or it has no such option.

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

    graph, state, count = _traced(module)
    return Network(name, shape, count, classes, dict(options), None, module, graph, state)


def from_module(network: Network, module_of: Callable[[nnx.Rngs], nnx.Module]) -> Network:
    """Returns a network with its module replaced."""
    graph, state, count = _traced(module_of)
    return replace(network, module_of=module_of, param_count=count, _graph=graph, _abstract=state)


def _traced(
    module: Callable[[nnx.Rngs], nnx.Module],
) -> tuple[nnx.GraphDef[nnx.Module], nnx.State[Any, Any], int]:
    abstract = nnx.eval_shape(lambda: module(nnx.Rngs(0)))
    refuse_batch_stats(abstract)
    graph, state = nnx.split(abstract)
    return graph, state, sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


def _add_vocabulary(
    name: str, model: Callable[..., nnx.Module], vocabulary: int | None, options: dict[str, Any]
) -> None:
    # The signature of an NNX class is that of its metaclass, which takes anything.
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


def _paths(params: Params) -> set[str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }


def _named(tree: Any) -> Any:  # a mapping or a leaf
    if isinstance(tree, Mapping):
        return {str(key): _named(value) for key, value in tree.items()}
    return tree
