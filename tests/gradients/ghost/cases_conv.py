"""Convolutions of one to three dimensions, in every option that XLA has."""

import jax
import jax.numpy as jnp

from tests.gradients.ghost.registry import case, kernel, named, rows

SPECS = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NHWDC", "HWDIO", "NHWDC")}


def conv(x, w, strides=1, padding="SAME", specs=None, **options):
    """Convolves one image without a batch axis, or several with one."""
    dims = w.ndim - 2
    single = x.ndim == dims + 1
    specs = specs or SPECS[dims]
    axis = specs[0].index("N")
    strides = (strides,) * dims if isinstance(strides, int) else strides
    y = jax.lax.conv_general_dilated(
        jnp.expand_dims(x, axis) if single else x,
        w,
        strides,
        padding,
        dimension_numbers=specs,
        **options,
    )
    return jnp.squeeze(y, specs[2].index("N")) if single else y


def conv_case(image, window, **options):
    def build(rng):
        def loss(w, x):
            y = conv(x, w, **options)
            weights = jnp.arange(1.0, 1 + y.size, dtype=y.dtype).reshape(y.shape)
            return jnp.sum(jnp.sin(y + 0.1 * weights))

        return loss, 0.5 * rng.standard_normal(window), rows(rng, *image)

    return build


CONVOLUTIONS = {
    "same": ((5, 4, 2), (3, 3, 2, 3), {}),
    "valid": ((5, 4, 2), (2, 3, 2, 3), {"padding": "VALID"}),
    "strided": ((6, 5, 2), (3, 2, 2, 3), {"strides": (2, 3)}),
    "strided_same_odd": ((7, 6, 1), (3, 3, 1, 2), {"strides": 2}),
    "explicit_padding": ((4, 5, 2), (3, 2, 2, 3), {"padding": ((2, 0), (1, 3))}),
    "negative_padding": ((6, 6, 1), (2, 2, 1, 2), {"padding": ((-1, 0), (1, -2))}),
    "dilated": ((7, 6, 2), (3, 2, 2, 2), {"rhs_dilation": (2, 3), "padding": "VALID"}),
    "strided_dilated": ((8, 7, 1), (2, 3, 1, 2), {"rhs_dilation": (2, 1), "strides": (1, 2)}),
    "transposed": (
        (3, 4, 2),
        (3, 3, 2, 2),
        {"lhs_dilation": (2, 2), "padding": ((2, 1), (1, 2))},
    ),
    "transposed_dilated_strided": (
        (4, 3, 1),
        (2, 3, 1, 2),
        {"lhs_dilation": (3, 2), "rhs_dilation": (2, 1), "strides": (2, 1)}
        | {"padding": ((1, 1), (2, 2))},
    ),
    "grouped": ((5, 4, 4), (3, 2, 2, 6), {"feature_group_count": 2}),
    "depthwise": ((5, 4, 3), (3, 3, 1, 3), {"feature_group_count": 3}),
    "depthwise_multiplied": ((4, 4, 2), (2, 2, 1, 6), {"feature_group_count": 2, "strides": 2}),
    "pointwise": ((3, 4, 3), (1, 1, 3, 2), {}),
    "pointwise_strided": ((5, 5, 2), (1, 1, 2, 3), {"strides": 2, "padding": "VALID"}),
    "whole_window": ((4, 3, 2), (4, 3, 2, 3), {"padding": "VALID"}),
    "window_beyond_the_image": ((2, 2, 1), (5, 4, 1, 2), {}),
    "without_pixels": ((2, 3, 1), (3, 5, 1, 2), {"padding": "VALID"}),
    "few_positions_many_channels": ((2, 2, 12), (3, 3, 12, 16), {}),
    "one_dimension": ((7, 2), (3, 2, 3), {"strides": 2}),
    "one_dimension_causal": ((6, 2), (3, 2, 3), {"padding": ((4, 0),), "rhs_dilation": (2,)}),
    "three_dimensions": ((3, 4, 3, 2), (2, 3, 2, 2, 2), {"strides": (1, 2, 1)}),
    "three_dimensions_grouped": ((3, 2, 3, 2), (2, 2, 2, 1, 2), {"feature_group_count": 2}),
    "channels_first": ((2, 5, 4), (3, 2, 3, 3), {"specs": ("NCHW", "OIHW", "NCHW")}),
    "mixed_layout": ((5, 2, 4), (3, 2, 3, 2), {"specs": ("HCNW", "OHWI", "NHCW")}),
    "several_frames": ((2, 4, 5, 2), (3, 2, 2, 3), {"strides": (1, 2)}),
    "batch_groups": ((4, 4, 4, 2), (3, 2, 2, 4), {"batch_group_count": 2}),
}
CONVOLUTIONS["mixed_layout"] = (
    (5, 2, 4),
    (3, 2, 3, 2),
    {"specs": ("HCNW", "OHWI", "NHCW"), "strides": (2, 1)},
)
for name, (image, window, options) in CONVOLUTIONS.items():
    named(f"conv_{name}", conv_case(image, window, **options))


@case
def conv_network(rng):
    """Convolutions with biases, a group norm's scale, pooling and a dense layer."""

    def loss(params, example):
        x, y = example
        x = conv(x, params["first"]) + params["bias"]
        groups = x.reshape(*x.shape[:2], 2, -1)
        mean = jnp.mean(groups, axis=(0, 1, 3), keepdims=True)
        spread = jnp.var(groups, axis=(0, 1, 3), keepdims=True)
        x = ((groups - mean) * jax.lax.rsqrt(spread + 1e-3)).reshape(x.shape)
        x = jax.nn.relu(x * params["scale"] + params["offset"])
        x = jax.nn.relu(conv(x, params["second"], strides=2))
        return -jax.nn.log_softmax(jnp.mean(x, axis=(0, 1)) @ params["dense"])[y]

    shapes = {"bias": (4,), "scale": (4,), "offset": (4,), "dense": (5, 3)}
    params = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    params |= {"first": kernel(rng, 3, 3, 1, 4), "second": kernel(rng, 3, 3, 4, 5)}
    return loss, params, (rows(rng, 6, 6, 1), rng.integers(0, 3, 5))


@case
def conv_shared_by_two_layers(rng):
    def loss(w, x):
        return jnp.sum(jnp.sin(conv(jnp.tanh(conv(x, w)), w)))

    return loss, kernel(rng, 2, 3, 2, 2), rows(rng, 4, 4, 2)


@case
def conv_with_the_data_as_kernel(rng):
    """A cross-correlation of a parameter image with the example."""

    def loss(image, x):
        return jnp.sum(jnp.sin(conv(image, x, padding="VALID")))

    return loss, kernel(rng, 5, 5, 2), rows(rng, 3, 2, 2, 3)


@case
def conv_of_a_flipped_and_masked_kernel(rng):
    def loss(w, x):
        masked = jnp.flip(w, axis=(0, 1)) * jnp.array([1.0, 1.0, 0.0], w.dtype)[:, None, None, None]
        return jnp.sum(jnp.sin(conv(x, masked)))

    return loss, kernel(rng, 3, 2, 1, 2), rows(rng, 4, 4, 1)
