"""Activations against their closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.models import activation, tempered_sigmoid

X = np.linspace(-6, 6, 101)


@pytest.mark.parametrize(
    ("scale", "inverse_temperature", "offset"), [(2.0, 2.0, 1.0), (1.58, 3.0, 0.71), (1.0, 1.0, 0)]
)
def test_tempered_sigmoid(scale, inverse_temperature, offset):
    function = tempered_sigmoid(scale, inverse_temperature, offset)
    expected = scale / (1 + np.exp(-inverse_temperature * X)) - offset
    np.testing.assert_allclose(function(jnp.asarray(X, jnp.float32)), expected, atol=2e-6)


def test_defaults_are_tanh_and_gradients_stay_finite_far_out():
    function = activation("tempered_sigmoid")
    np.testing.assert_allclose(function(jnp.asarray(X, jnp.float32)), np.tanh(X), atol=1e-6)
    far = jax.vmap(jax.grad(function))(jnp.array([-1e4, 0.0, 1e4]))
    np.testing.assert_allclose(far, [0.0, 1.0, 0.0], atol=1e-6)


def test_named_activations():
    x = jnp.asarray(X, jnp.float32)
    np.testing.assert_allclose(activation("relu")(x), np.maximum(X, 0), rtol=1e-6)
    np.testing.assert_allclose(activation("tanh")(x), np.tanh(X), atol=1e-6)
    mish = X * np.tanh(np.log1p(np.exp(X)))
    np.testing.assert_allclose(activation({"name": "mish"})(x), mish, atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rellu", "activation = 'rellu': did you mean 'relu'"),
        ({"scale": 1.0}, "activation = None"),
        ({"name": "relu", "scale": 1.0}, r"activation.scale: \(known: none\)"),
        ({"name": "tempered_sigmoid", "scal": 1.0}, "activation.scal: did you mean 'scale'"),
        ({"name": "tempered_sigmoid", "scale": float("nan")}, "scale = nan: expected"),
        ({"name": "tempered_sigmoid", "inverse_temperature": 0}, "inverse_temperature = 0"),
        ({"name": "tempered_sigmoid", "offset": float("inf")}, "offset = inf"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError, match=message):
        activation(spec)
