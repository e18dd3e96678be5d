"""LSTMs against a float64 NumPy loop; padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpjax.models import build
from dpjax.models.recurrent import LSTMLayer
from tests.models import reference as ref
from tests.models.helpers import fast_jit, random_params

TOKENS = np.array([3, 1, 6, 2, 5], np.int32)


def build_and_init(name, length, layers):
    network = build(name, (length,), 4, 7, embedding=3, hidden=5, layers=layers)
    return network, random_params(network)


def expected_logits(params, tokens):
    """Reads the tokens forwards, and backwards if the parameters say so."""
    states = np.asarray(params["embedding"], np.float64)[tokens]
    for depth in sorted(params["forward"]):
        ahead = ref.lstm(states, params["forward"][depth])
        last = ahead[-1]
        if "backward" in params:
            behind = ref.lstm(states[::-1], params["backward"][depth])[::-1]
            last = np.concatenate([last, behind[0]])
            states = np.concatenate([ahead, behind], axis=1)
        else:
            states = ahead
    return ref.dense(last, params["dense"])


@pytest.mark.parametrize("name", ["lstm", "bilstm"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 3), (2, 1)])
def test_is_a_numpy_lstm_whatever_the_padding(name, layers, before, after):
    network, params = build_and_init(name, len(TOKENS) + before + after, layers)
    padded = jnp.asarray(np.pad(TOKENS, (before, after)))
    expected = expected_logits(params, TOKENS)
    np.testing.assert_allclose(fast_jit(network.apply)(params, padded), expected, atol=1e-5)


def test_order_matters_and_both_ends_are_read():
    network, params = build_and_init("bilstm", len(TOKENS), 1)
    reversed_logits = fast_jit(network.apply)(params, jnp.asarray(TOKENS[::-1].copy()))
    assert not np.allclose(reversed_logits, expected_logits(params, TOKENS), atol=1e-3)


def test_padding_has_no_gradient_and_an_empty_sequence_is_finite():
    network, params = build_and_init("lstm", 8, 2)

    def loss(params, tokens):
        return jax.nn.logsumexp(network.apply(params, tokens))

    gradient = fast_jit(jax.grad(loss))
    rows = gradient(params, jnp.asarray(np.pad(TOKENS, (0, 3))))["embedding"]
    assert np.flatnonzero(np.any(np.asarray(rows) != 0, axis=1)).tolist() == sorted(TOKENS)
    empty = gradient(params, jnp.zeros(8, jnp.int32))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(empty))
    logits = fast_jit(network.apply)(params, jnp.zeros(8, jnp.int32))
    np.testing.assert_array_equal(logits, params["dense"]["bias"])  # the state stays zero


def test_initial_parameters_are_within_pytorchs_limits():
    layer = LSTMLayer(64, 128, rngs=nnx.Rngs(0))
    for leaf in jax.tree.leaves(nnx.state(layer)):
        assert 0.9 / np.sqrt(128) < np.abs(leaf).max() <= 1 / np.sqrt(128)
