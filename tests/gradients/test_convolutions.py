"""Convolutions rewritten channels last: the same values, and the layout that is asked for."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.platforms import CPU, assumed

CHANNELS_LAST = {3: ("NHC", "HIO", "NHC"), 4: ("NHWC", "HWIO", "NHWC")}


def layouts(jaxpr):
    """The dimension numbers of every convolution, also of inner programs."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "conv_general_dilated":
            yield eqn.params["dimension_numbers"]
        for value in eqn.params.values():
            if hasattr(value, "jaxpr"):
                yield from layouts(value.jaxpr)


def is_channels_last(numbers):
    rank = len(numbers.lhs_spec)
    return numbers == jax.lax.conv_dimension_numbers((1,) * rank, (1,) * rank, CHANNELS_LAST[rank])


@pytest.mark.parametrize(
    ("specs", "strides", "padding", "dilation", "groups"),
    [
        (("NCHW", "OIHW", "NCHW"), (1, 1), "VALID", (1, 1), 1),
        (("NHWC", "OIHW", "NCHW"), (2, 1), "SAME", (1, 1), 1),
        (("CNHW", "IHWO", "HWNC"), (1, 2), ((1, 0), (2, 3)), (2, 1), 1),
        (("WHCN", "HIWO", "CWHN"), (2, 2), ((0, 0), (1, 1)), (1, 2), 2),
    ],
)
def test_any_layout_gives_the_sum_over_the_window(specs, strides, padding, dilation, groups):
    """Against NumPy in float64: out[n, i, j, o] = sum over the window and the group's inputs."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 7, 6, 4))
    kernel = rng.standard_normal((3, 2, 4 // groups, 6))
    expected = by_hand(image, kernel, strides, padding, dilation, groups)

    def moved(array, source, target):
        return np.transpose(array, [source.index(axis) for axis in target]).astype(np.float32)

    def conv(x, k):
        return jax.lax.conv_general_dilated(
            x, k, strides, padding, None, dilation, specs, feature_group_count=groups
        )

    x, k = moved(image, "NHWC", specs[0]), moved(kernel, "HWIO", specs[1])
    rewritten = channels_last_convolutions(jax.jit(conv))
    found = moved(np.asarray(rewritten(x, k), np.float64), specs[2], "NHWC")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    with assumed(CPU):
        assert all(map(is_channels_last, layouts(jax.make_jaxpr(rewritten)(x, k).jaxpr)))
    assert not all(map(is_channels_last, layouts(jax.make_jaxpr(conv)(x, k).jaxpr)))


def by_hand(image, kernel, strides, padding, dilation, groups):
    reach = [(size - 1) * d + 1 for size, d in zip(kernel.shape[:2], dilation, strict=True)]
    if padding == "VALID":
        padding = ((0, 0), (0, 0))
    if padding == "SAME":
        needed = [
            max((-(-size // s) - 1) * s + r - size, 0)
            for size, s, r in zip(image.shape[1:3], strides, reach, strict=True)
        ]
        padding = tuple((n // 2, n - n // 2) for n in needed)
    x = np.pad(image, ((0, 0), *padding, (0, 0)))
    out = [(x.shape[1 + a] - reach[a]) // strides[a] + 1 for a in (0, 1)]
    result = np.zeros((len(x), *out, kernel.shape[3]))
    inputs, outputs = kernel.shape[2], kernel.shape[3] // groups
    for i, j in itertools.product(*map(range, out)):
        for p, q in itertools.product(*map(range, kernel.shape[:2])):
            pixel = x[:, i * strides[0] + p * dilation[0], j * strides[1] + q * dilation[1]]
            for g in range(groups):
                part = pixel[:, g * inputs : (g + 1) * inputs]
                weights = kernel[p, q, :, g * outputs : (g + 1) * outputs]
                result[:, i, j, g * outputs : (g + 1) * outputs] += part @ weights
    return result


def cnn(params, example):
    x = example[None]
    for kernel in params:
        x = jax.lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", dimension_numbers=CHANNELS_LAST[4]
        )
        x = jnp.tanh(x)
    return jnp.sum(jnp.square(x))


def test_gradients_in_the_chunk_loop_are_channels_last_and_those_of_jax():
    rng = np.random.default_rng(1)
    params = [
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in ((3, 3, 2, 4), (2, 2, 4, 3))
    ]
    data = jnp.asarray(rng.standard_normal((7, 9, 8, 2)), jnp.float32)
    grads_of = dpjax.per_example_grads(cnn, chunk=3)

    def clipped(params, data):
        return grads_of(params, data).aggregate(lambda n: (jnp.minimum(1, 1 / n), n)).rounded

    total, norms = jax.jit(clipped)(params, data)
    one_by_one = [jax.grad(cnn)(params, example) for example in data]
    lengths = np.array(
        [np.sqrt(sum(np.sum(np.asarray(g, np.float64) ** 2) for g in gs)) for gs in one_by_one]
    )
    assert float(norms) == pytest.approx(lengths.sum(), rel=1e-5)
    for i, found in enumerate(total):
        expected = sum(
            min(1, 1 / n) * np.asarray(gs[i], np.float64)
            for n, gs in zip(lengths, one_by_one, strict=True)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    with assumed(CPU):
        numbers = list(layouts(jax.make_jaxpr(partial(clipped))(params, data).jaxpr))
    assert len(numbers) >= 4
    assert all(map(is_channels_last, numbers))
    plain = jax.make_jaxpr(jax.vmap(jax.grad(cnn), in_axes=(None, 0)))(params, data)
    assert not all(map(is_channels_last, layouts(plain.jaxpr)))  # what would run in the loop


def test_a_function_without_convolutions_is_left_alone():
    called = []

    def fn(x):
        called.append(x)
        return {"y": jnp.sin(x)}

    np.testing.assert_array_equal(channels_last_convolutions(fn)(1.0)["y"], jnp.sin(1.0))
    assert called[-1] == 1.0  # called with the value itself, not with a tracer
