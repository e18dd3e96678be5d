"""Where a parameter meets data: its gradient for one example, and summed over all.

A `Site` is one parameter operand of one meeting. Most are products, which all take one form: the
gradient is ``sum_t a_t b_t^T`` over positions t, with a_t in R^K from the data and b_t in R^C from
the cotangent, for each of G independent blocks:

- a `dot_general`: K contracted, C free in the parameter, t free in the data, G batched in both;
- a `conv_general_dilated`: K a window of the image, C output channels, t output pixels, G groups.

In a loop, iterations are positions if the parameter is the same in all of them, and blocks
otherwise. A gather of rows is a lookup, whose gradient has at most as many rows as there are
positions. Anything else is differentiated through its own equation.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.devices import varying, varying_zero
from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.ghost.trace import Meeting, Node
from dpjax.gradients.jaxprs import aval_of, evaluate, is_differentiable, is_float
from dpjax.gradients.norms import settled
from dpjax.gradients.platforms import Platform
from dpjax.twofloat import accumulation_dtype

__all__ = [
    "Given",
    "Site",
    "blocks_product",
    "is_lookup",
    "lookup_axis",
    "lookup_sizes",
    "precision_of",
    "sites_of",
    "weighted_site_sum",
    "wide",
]

# Equations whose derivative with respect to a parameter costs no more than the equation itself.
_FORMULAS = (
    *("add", "sub", "mul", "div", "add_any", "gather", "identity"),
    *("concatenate", "select_n", "pad", "dynamic_slice", "dynamic_update_slice"),
)

_DEFAULT, _HIGHEST = jax.lax.Precision.DEFAULT, jax.lax.Precision.HIGHEST
# The precisions at which matrix units may round an equation's factors.
_FEW_CHANNELS = 8
_COARSE = (None, _DEFAULT, (_DEFAULT, _DEFAULT))


@dataclass(frozen=True)
class Given:
    """What a backward pass returned at a meeting: kept operands and cotangents; a pytree."""

    kept: tuple[jax.Array, ...]
    cotangents: tuple[jax.Array, ...]


jax.tree_util.register_dataclass(Given, ["kept", "cotangents"], [])


_Factors = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class _Contraction:
    """A meeting as a contraction, in one iteration of its loops.

    Attributes:
        factors: maps the data operand and the cotangent to the two factors, on a platform.
        layout: the layout of the data's factor, "gtk" or "gkt", whichever is faster to copy into;
            the cotangent's is "gtc".
        assembled: maps the gradient (G, K, C) to the parameter's shape.
        sizes: G, T, K, C.
        copies: how often each number of the data appears in the data's factor.
    """

    factors: Callable[[Platform, jax.Array, jax.Array], _Factors]
    layout: str
    assembled: Callable[[jax.Array], jax.Array]
    sizes: tuple[int, int, int, int]
    copies: float


@dataclass(frozen=True, eq=False)
class Site:
    """A parameter operand of a meeting.

    Attributes:
        meeting: the meeting.
        position: the position of the operand.
        node: the operand.
        product: the meeting as a contraction, if it is one.
    """

    meeting: Meeting
    position: int
    node: Node
    product: _Contraction | None = field(repr=False)

    @property
    def has_formula(self) -> bool:
        """Whether the meeting is an equation with its own formula, as in most networks."""
        return self.product is not None or self.meeting.name in _FORMULAS

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(G, T, K, C) of a contraction, over all iterations of its loops."""
        assert self.product is not None
        g, t, k, c = self.product.sizes
        for loop in self.meeting.loops:
            if loop in self.node.loops:
                g *= loop.length
            else:
                t *= loop.length
        return g, t, k, c

    def factors(self, platform: Platform, given: Given) -> tuple[jax.Array, jax.Array]:
        """Returns both factors of one example in an accumulation dtype; see `layouts`."""
        assert self.product is not None
        (operand,), (cotangent,) = given.kept, given.cotangents
        of: Callable[..., _Factors] = partial(self.product.factors, platform)
        for _ in self.meeting.loops:
            of = jax.vmap(of)
        a, b = of(wide(operand), wide(cotangent))
        return self.merged(a, self.layouts[0]), self.merged(b, self.layouts[1])

    def arithmetic(self, platform: Platform) -> Platform:
        """Returns the platform, with float32 factors if the equation asks for precision."""
        asked = self.meeting.eqn.params["precision"]
        return replace(platform, bits=None) if asked not in _COARSE else platform

    def rounded(self, platform: Platform, given: Given) -> Given:
        """Returns a contraction's operands, rounded as both its norm and weighted sum use them."""
        return jax.tree.map(lambda x: self.arithmetic(platform).rounded(wide(x)), given)

    @property
    def layouts(self) -> tuple[str, str]:
        """The axes of both factors: g blocks, t positions, k data entries, c cotangent entries."""
        assert self.product is not None
        return self.product.layout, "gtc"

    def merged(self, factor: jax.Array, layout: str) -> jax.Array:
        """Merges the leading loop axes into the blocks or the positions of a layout."""
        loops = self.meeting.loops
        axes: dict[str, list[int]] = {"g": [], "t": []}
        for i, loop in enumerate(loops):
            axes["g" if loop in self.node.loops else "t"].append(i)
        order, shape = [], []
        for i, name in enumerate(layout, len(loops)):
            mine = [*axes.get(name, ()), i]
            order += mine
            shape.append(math.prod(factor.shape[axis] for axis in mine))
        return jnp.transpose(factor, order).reshape(shape)

    def gradient(self, platform: Platform, given: Given, values: Sequence[jax.Array]) -> jax.Array:
        """Returns one example's gradient of the node, in its shape and an accumulation dtype.

        Args:
            platform: where it runs.
            given: what the pass returned for this example.
            values: the values of the meeting's nodes, over all iterations of their loops.
        """
        if self.product is None:
            return self._pulled_back(given, values)
        return self.of_factors(platform, given, None)

    def of_factors(
        self, platform: Platform, given: Given, factors: tuple[jax.Array, jax.Array] | None
    ) -> jax.Array:
        """Returns one example's gradient of a contraction, from `factors` if they are given."""
        if platform.name == "gpu" and self.meeting.name == "conv_general_dilated":
            # A grouped convolution, without windows; it does not depend on the kernel's value.
            given = jax.tree.map(wide, given)
            dtype = given.cotangents[0].dtype
            kernel = varying(jnp.zeros(self.node.shape, dtype), varying_zero(given))
            return self._pulled_back(given, [kernel], {"preferred_element_type": dtype})
        a, b = self.factors(platform, given) if factors is None else factors
        precision = precision_of(self.arithmetic(platform))
        return self.assembled(blocks_product(f"{self.layouts[0]},gtc->gkc", a, b, precision))

    def assembled(self, blocks: jax.Array) -> jax.Array:
        """Returns the gradient (G, K, C) of a contraction in the shape of the node."""
        assert self.product is not None
        turns = [loop.length for loop in self.node.loops]
        back = self.product.assembled
        for _ in turns:
            back = jax.vmap(back)
        g, _, k, c = self.product.sizes
        return back(blocks.reshape(*turns, g, k, c))

    def _pulled_back(
        self,
        given: Given,
        values: Sequence[jax.Array],
        parameters: Mapping[str, object] | None = None,
    ) -> jax.Array:
        """Returns the gradient by differentiating the meeting's own equation.

        Args:
            given: what the pass returned for this example.
            values: the values of the meeting's nodes, over all iterations of their loops.
            parameters: override some of the equation's own.
        """
        if self.meeting.eqn is None:
            found = given.cotangents[0]
        else:
            pull: Callable[..., jax.Array] = partial(self._pull, parameters)
            for loop in reversed(self.meeting.loops):
                axes = [0 if loop in node.loops else None for node in self.meeting.nodes.values()]
                pull = jax.vmap(pull, in_axes=(0, axes))
            found = pull(given, list(values))
        turns = [i for i, loop in enumerate(self.meeting.loops) if loop not in self.node.loops]
        return jnp.sum(wide(found), axis=tuple(turns))

    def _pull(
        self, parameters: Mapping[str, object] | None, given: Given, values: Sequence[jax.Array]
    ) -> jax.Array:
        positions = list(self.meeting.nodes)

        def results(*own: jax.Array) -> list[jax.Array]:
            operands = self.meeting.operands(given.kept, dict(zip(positions, own, strict=True)))
            found = evaluate(self.meeting.eqn, operands, parameters)
            return [found[i] for i in self.meeting.tapped]

        # For all operands, since not every equation can be differentiated for one alone.
        pulled = jax.vjp(results, *values)[1](list(given.cotangents))
        return pulled[positions.index(self.position)]


def sites_of(meetings: Sequence[Meeting]) -> list[Site]:
    """Returns the sites of all meetings."""
    return [
        Site(meeting, position, node, _contraction(meeting))
        for meeting in meetings
        for position, node in meeting.nodes.items()
    ]


def wide(x: jax.Array) -> jax.Array:
    """Returns differentiable arrays in an accumulation dtype, and anything else as it is."""
    return settled(x).astype(accumulation_dtype(x)) if is_differentiable(x) else x


def precision_of(platform: Platform) -> jax.lax.Precision:
    """Returns the precision of products: the matrix units' own if factors are rounded to it."""
    return _HIGHEST if platform.bits is None else _DEFAULT


def blocks_product(how: str, a: jax.Array, b: jax.Array, precision: jax.lax.Precision) -> jax.Array:
    """Returns a product for each block; `how` as in einsum.

    A single block is a plain matrix product, which is faster on CPUs than a batch of one.
    """
    if a.shape[0] > 1:
        return jnp.einsum(how, a, b, precision=precision)
    return jnp.einsum(how.replace("g", ""), a[0], b[0], precision=precision)[None]


def weighted_site_sum(
    platform: Platform, site: Site, given: Given, weights: jax.Array
) -> jax.Array:
    """Returns ``sum_i w_i g_i`` for a site's node, in the shape of the node.

    The weights multiply the smaller factor. If factors are rounded, the weighted factor is split
    into two rounded parts, which leave out at most ``2^-2bits`` of each entry, and the result is
    the sum of two products.

    Args:
        platform: where it runs.
        site: a contraction, or a lookup of rows.
        given: what the pass returned for all examples.
        weights: (N,).
    """
    if site.product is None:
        own, kept = replace(platform, bits=None), given.kept
    else:
        own = site.arithmetic(platform)
        kept = tuple(own.rounded(wide(x)) for x in given.kept)
    cotangent = own.rounded(wide(given.cotangents[0]))
    of_data = site.product is not None and kept[0].size < cotangent.size
    smaller = kept[0] if of_data else cotangent
    weighted = smaller * weights.astype(smaller.dtype).reshape((-1,) + (1,) * (smaller.ndim - 1))
    parts = [weighted]
    if own.bits is not None and weighted.dtype == jnp.float32:
        high = own.rounded(weighted)
        parts = [high, own.rounded(weighted - high)]
    precision = precision_of(own)

    def summed(part: jax.Array) -> jax.Array:
        both = Given((part,), (cotangent,)) if of_data else Given(kept, (part,))
        if site.meeting.name != "dot_general":
            return _transposed(site, both, cotangent.dtype, precision)
        a, b = jax.vmap(partial(site.factors, platform))(both)
        how = f"n{site.layouts[0]},ngtc->gkc"
        return site.assembled(jnp.einsum(how, a, b, precision=precision))

    return sum(map(summed, parts[1:]), start=summed(parts[0]))


def _transposed(
    site: Site, given: Given, dtype: jnp.dtype, precision: jax.lax.Precision
) -> jax.Array:
    """Returns the gradient of the batched equation for the operand that all examples share."""
    meeting = site.meeting
    exact = {"precision": (precision, precision), "preferred_element_type": jnp.dtype(dtype)}
    exact = {name: value for name, value in exact.items() if name in meeting.eqn.params}

    def one(value: jax.Array, kept: Sequence[jax.Array]) -> jax.Array:
        return evaluate(meeting.eqn, meeting.operands(kept, {site.position: value}), exact)[0]

    batched: Callable[..., jax.Array] = one
    for loop in reversed(meeting.loops):
        batched = jax.vmap(batched, in_axes=(0 if loop in site.node.loops else None, 0))
    batched = jax.vmap(batched, in_axes=(None, 0))

    def pulled(given: Given) -> jax.Array:
        # A copy on each device: the gradient of a shared operand would be summed over devices.
        shared = varying(jnp.zeros(site.node.shape, dtype), varying_zero(given))
        return jax.vjp(lambda value: batched(value, given.kept), shared)[1](given.cotangents[0])[0]

    return channels_last_convolutions(pulled)(given)


def is_lookup(meeting: Meeting) -> bool:
    """Returns whether a meeting gathers whole rows of a parameter, one index each."""
    if list(meeting.nodes) != [0] or not is_float(meeting.avals[0]):
        return False
    axis = lookup_axis(meeting)
    if axis is None:
        return False
    shape, sizes = meeting.nodes[0].aval.shape, tuple(meeting.eqn.params["slice_sizes"])
    return sizes == tuple(1 if i == axis else n for i, n in enumerate(shape))


def lookup_axis(meeting: Meeting) -> int | None:
    """Returns the axis of the table that is indexed; None if the meeting is not a lookup."""
    if meeting.name == "gather":
        numbers = meeting.eqn.params["dimension_numbers"]
        indexed = tuple(numbers.start_index_map)
        one = len(indexed) == 1 and tuple(numbers.collapsed_slice_dims) == indexed
        return indexed[0] if one and not numbers.operand_batching_dims else None
    if meeting.name == "dynamic_slice":
        pairs = zip(meeting.nodes[0].aval.shape, meeting.eqn.params["slice_sizes"], strict=True)
        cut = [i for i, (whole, size) in enumerate(pairs) if whole != size]
        return cut[0] if len(cut) == 1 else None
    return None


def lookup_sizes(site: Site) -> tuple[int, int]:
    """Returns how many numbers one example looks up, and how many the table holds."""
    return math.prod(site.meeting.turns) * math.prod(site.meeting.avals[0].shape), math.prod(
        site.node.shape
    )


def _contraction(meeting: Meeting) -> _Contraction | None:
    """Returns a meeting with one parameter as a contraction; None if it is not one."""
    if len(meeting.nodes) != 1 or not all(map(is_float, meeting.avals)):
        return None
    (position,) = meeting.nodes
    if meeting.name == "dot_general":
        return _dot(meeting.eqn, position)
    if meeting.name == "conv_general_dilated" and position == 1:
        return _conv(meeting.eqn)
    return None


def _dot(eqn: core.JaxprEqn, position: int) -> _Contraction:
    contracted, batched = eqn.params["dimension_numbers"]
    own, other = position, 1 - position
    rank, data_rank = (aval_of(eqn.invars[i]).ndim for i in (own, other))
    free = _without(rank, *contracted[own], *batched[own])
    positions = _without(data_rank, *contracted[other], *batched[other])
    shape, data = aval_of(eqn.invars[own]).shape, aval_of(eqn.invars[other]).shape
    sizes = (
        math.prod(shape[i] for i in batched[own]),
        math.prod(data[i] for i in positions),
        math.prod(shape[i] for i in contracted[own]),
        math.prod(shape[i] for i in free),
    )
    g, t, k, c = sizes
    order = (*batched[own], *contracted[own], *free)

    def factors(platform: Platform, operand: jax.Array, cotangent: jax.Array) -> _Factors:
        del platform
        axes = (*batched[other], *positions, *contracted[other])
        a = jnp.transpose(operand, axes).reshape(g, t, k)
        if own == 1:
            return a, cotangent.reshape(g, t, c)
        return a, jnp.swapaxes(cotangent.reshape(g, c, t), 1, 2)

    def assembled(gradient: jax.Array) -> jax.Array:
        blocks = gradient.reshape([shape[i] for i in order])
        return jnp.transpose(blocks, [order.index(i) for i in range(rank)])

    return _Contraction(factors, "gtk", assembled, sizes, 1.0)


def _conv(eqn: core.JaxprEqn) -> _Contraction | None:
    parameters = eqn.params
    if parameters["batch_group_count"] != 1:
        return None
    (batch, features, *space), (to, source, *window), out = parameters["dimension_numbers"]
    image, kernel = (aval_of(var).shape for var in eqn.invars)
    groups = parameters["feature_group_count"]
    offsets = [kernel[i] for i in window]
    rows = [aval_of(eqn.outvars[0]).shape[i] for i in out[2:]]
    per_group, channels = kernel[source], kernel[to] // groups
    t = image[batch] * math.prod(rows)
    k = math.prod(offsets) * per_group
    padding = [
        (lo, hi, dilation - 1)
        for (lo, hi), dilation in zip(
            parameters["padding"], parameters["lhs_dilation"], strict=True
        )
    ]

    def windows(operand: jax.Array) -> jax.Array:
        """Returns (G, K, T): the window of every output pixel, axis by axis, channels first.

        Copying runs of pixels is faster than copying a few channels at a time.
        """
        x = jnp.transpose(operand, (features, batch, *space))
        x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * 2 + padding)
        for i, (count, size) in enumerate(zip(offsets, rows, strict=True)):
            stride, dilation = parameters["window_strides"][i], parameters["rhs_dilation"][i]
            axis = i + 2 + i  # behind as many axes of offsets
            # If there is no output pixel, a window may begin beyond the image.
            begins = [offset * dilation if size else 0 for offset in range(count)]
            span = (size - 1) * stride + 1 if size else 0
            x = jnp.stack(
                [jax.lax.slice_in_dim(x, begin, begin + span, stride, axis) for begin in begins],
                axis=i,
            )
        x = x.reshape(math.prod(offsets), groups, per_group, t)
        return jnp.swapaxes(x, 0, 1).reshape(groups, k, t)

    def beside(operand: jax.Array) -> jax.Array:
        """Returns the same windows, by concatenating slices after the channels."""
        x = jnp.transpose(operand, (batch, *space, features))
        x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
        slices = []
        for offset in itertools.product(*map(range, offsets)):
            begin = [
                i * dilation for i, dilation in zip(offset, parameters["rhs_dilation"], strict=True)
            ]
            strides = parameters["window_strides"]
            end = [
                i + (n - 1) * stride + 1 for i, n, stride in zip(begin, rows, strides, strict=True)
            ]
            slices.append(
                jax.lax.slice(
                    x,
                    (0, *begin, 0),
                    (image[batch], *end, image[features]),
                    (1, *strides, 1),
                )
            )
        x = jnp.concatenate(slices, axis=-1).reshape(t, len(slices), groups, per_group)
        return jnp.transpose(x, (2, 1, 3, 0)).reshape(groups, k, t)

    def patches(operand: jax.Array) -> jax.Array:
        """Returns the same windows, by a convolution with a kernel of zeros and ones."""
        names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
        x = jax.lax.conv_general_dilated_patches(
            jnp.transpose(operand, (batch, *space, features)),
            offsets,
            dimension_numbers=_channels_last(len(space)),
            **{name: parameters[name] for name in names},
        )
        x = x.reshape(t, groups, per_group, math.prod(offsets))
        return jnp.transpose(x, (1, 3, 2, 0)).reshape(groups, k, t)

    def factors(platform: Platform, operand: jax.Array, cotangent: jax.Array) -> _Factors:
        b = jnp.transpose(cotangent, (out[0], *out[2:], out[1])).reshape(t, groups, channels)
        of = windows if platform.serial or t == 0 else beside
        if of is beside and image[features] < _FEW_CHANNELS and platform.bits is not None:
            of = patches
        return of(operand), jnp.swapaxes(b, 0, 1)

    def assembled(gradient: jax.Array) -> jax.Array:
        blocks = gradient.reshape(groups, *offsets, per_group, channels)
        blocks = jnp.moveaxis(blocks, 0, -2)  # an output channel is (group, channel in the group)
        whole = blocks.reshape(*offsets, per_group, groups * channels)
        places = {**{axis: i for i, axis in enumerate(window)}, source: len(window)}
        places[to] = len(window) + 1
        return jnp.transpose(whole, [places[i] for i in range(len(kernel))])

    copies = t * k * groups / max(1, math.prod(image))
    return _Contraction(factors, "gkt", assembled, (groups, t, k, channels), copies)


def _channels_last(dimensions: int) -> jax.lax.ConvDimensionNumbers:
    last, inner = dimensions + 1, tuple(range(1, dimensions + 1))
    kernel = (last, dimensions, *range(dimensions))
    return jax.lax.ConvDimensionNumbers((0, last, *inner), kernel, (0, last, *inner))


def _without(rank: int, *taken: int) -> Sequence[int]:
    return [i for i in range(rank) if i not in taken]
