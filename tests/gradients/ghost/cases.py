"""All cases by name, in one table."""

from tests.gradients.ghost import (  # noqa: F401  (each enters its cases in the table)
    cases_calls,
    cases_chains,
    cases_conv,
    cases_custom,
    cases_lookup,
    cases_loops,
    cases_plain,
)
from tests.gradients.ghost.cases_networks import SLOW
from tests.gradients.ghost.registry import BUILDERS, get, named

__all__ = ["FAST", "FEW", "NAMES", "get"]

# Small programs as one, which compiles in half the time; alone, and the others, are slow tests.
CONVOLUTIONS = ("strided", "explicit_padding", "dilated", "transposed_dilated_strided", "grouped")
CONVOLUTIONS += ("depthwise_multiplied", "few_positions_many_channels", "one_dimension_causal")
CONVOLUTIONS += ("three_dimensions", "mixed_layout", "several_frames", "shared_by_two_layers")
CONVOLUTIONS += ("without_pixels",)
TOGETHER = {
    "convolutions": [f"conv_{name}" for name in CONVOLUTIONS],
    "contractions": [name for name in BUILDERS if name.startswith("einsum_")],
    "nonlinear_derivatives": [name for name in BUILDERS if name.startswith("nonlinear_")],
}


def together(names):
    """Returns one case whose loss is the sum of these, each a leaf or more."""
    members = {name: get(name) for name in names}

    def loss(params, example):
        return sum(one.loss(params[name], example[name]) for name, one in members.items())

    params = {name: one.params for name, one in members.items()}
    return loss, params, {name: one.batch for name, one in members.items()}


ALONE = tuple(name for name in BUILDERS if name.startswith(("conv_", "einsum_", "nonlinear_")))
for group, names in TOGETHER.items():
    named(group, lambda rng, names=names: together(names))
NAMES = tuple(BUILDERS)
# One of each kind, for what needs a program of its own.
FEW = (
    "dense_over_positions",
    "wide_dense_over_few_positions",
    "conv_network",
    "recurrent",
    "tied_embedding_and_logits",
    "uncommon_operations",
)
# They take four seconds or more to compile.
LONG = ("encoder_with_tied_embeddings", "linen_scanned_layers")
FAST = [name for name in NAMES if name in FEW or name not in (*SLOW, *ALONE, *LONG)]
