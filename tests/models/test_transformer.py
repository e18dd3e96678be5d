"""BERT and RoBERTa against a float64 NumPy encoder; padding, segments, what is trained, sizes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.models import Parameters, build, split
from tests.gradients.ghost.contract import ROWS, Case, check_one_pass
from tests.models import reference as ref
from tests.models.helpers import fast_jit, random_params

TOKENS = np.array([5, 3, 1, 6, 1, 2], np.int32)
SIZE = {"layers": 2, "width": 8, "heads": 2, "hidden": 12, "positions": 10}
EPSILON = {"bert": 1e-12, "roberta": 1e-5}
TABLES = ("tokens", "positions", "segments")


def tiny(name, length, **options):
    network = build(name, (length,), 4, 7, **SIZE, **options)
    return network, random_params(network)


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def layer_norm(x, layer, epsilon):
    """Normalises one state after the other."""
    rows = [(row - row.mean()) / np.sqrt(row.var() + epsilon) for row in x]
    return np.array(rows) * np.asarray(layer["scale"], np.float64) + np.asarray(layer["bias"])


def gelu(x):
    return np.vectorize(lambda value: value * (1 + math.erf(value / math.sqrt(2))) / 2)(x)


def attention(x, block, heads):
    """Each token of each head looks at all tokens, one by one."""
    query, key, value = (ref.dense(x, block[name]) for name in ("query", "key", "value"))
    size = x.shape[1] // heads
    mixed = np.zeros_like(x)
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        for row in range(len(x)):
            weights = softmax(key[:, own] @ query[row, own] / math.sqrt(size))
            mixed[row, own] = weights @ value[:, own]
    return ref.dense(mixed, block["output"])


def expected_logits(name, params, tokens, separator=1):
    """The encoder without any padding; BERT's second segment begins after the separator."""
    tables = {key: np.asarray(params["embeddings"][key], np.float64) for key in TABLES}
    before = {"bert": 0, "roberta": 1}[name]  # RoBERTa's first row is the padding's
    x = tables["tokens"][tokens] + tables["positions"][before : before + len(tokens)]
    places = np.flatnonzero(tokens == separator)
    first = places[0] if len(places) and name == "bert" else len(tokens)
    x = x + np.array([tables["segments"][int(i > first)] for i in range(len(tokens))])
    x = layer_norm(x, params["embeddings"]["norm"], EPSILON[name])
    for depth in sorted(params["blocks"]):
        block = params["blocks"][depth]
        x = layer_norm(x + attention(x, block, SIZE["heads"]), block["norm1"], EPSILON[name])
        hidden = gelu(ref.dense(x, block["inner"]))
        x = layer_norm(x + ref.dense(hidden, block["outer"]), block["norm2"], EPSILON[name])
    return ref.dense(np.tanh(ref.dense(x[0], params["pooler"])), params["classifier"])


@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.parametrize("after", [0, 3])
def test_is_a_numpy_encoder_whatever_the_padding(name, after):
    network, params = tiny(name, len(TOKENS) + after)
    assert sorted(params["embeddings"]) == sorted([*TABLES, "norm"])
    padded = jnp.asarray(np.pad(TOKENS, (0, after)))
    expected = expected_logits(name, params, TOKENS)
    np.testing.assert_allclose(fast_jit(network.apply)(params, padded), expected, atol=1e-5)


def test_the_second_segment_begins_after_the_first_separator():
    for separator in (6, 4):  # the second is in no text: there is one segment
        network, params = tiny("bert", len(TOKENS), separator=separator)
        found = fast_jit(network.apply)(params, jnp.asarray(TOKENS))
        expected = expected_logits("bert", params, TOKENS, separator)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert not np.allclose(found, expected_logits("bert", params, TOKENS, 1), atol=1e-3)


def test_padding_has_no_gradient_and_an_empty_sequence_is_finite():
    network, params = tiny("bert", 9)

    def loss(params, tokens):
        return jax.nn.logsumexp(network.apply(params, tokens))

    gradient = fast_jit(jax.grad(loss))
    found = gradient(params, jnp.asarray(np.pad(TOKENS, (0, 3))))["embeddings"]

    def used(table):
        return np.flatnonzero(np.any(np.asarray(found[table]) != 0, axis=1)).tolist()

    assert used("tokens") == sorted(set(TOKENS.tolist()))
    assert used("positions") == list(range(len(TOKENS)))
    assert used("segments") == [0, 1]
    empty = gradient(params, jnp.zeros(9, jnp.int32))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(empty))


def test_parameters_start_as_published():
    params = build("bert", (4,), 2, 1000, layers=1, width=64, heads=4, hidden=128).init(
        jax.random.key(0)
    )
    block = params["blocks"]["0"]
    for leaf in (
        params["embeddings"]["tokens"],
        block["query"]["kernel"],
        block["inner"]["kernel"],
    ):
        assert np.std(leaf) == pytest.approx(0.02, rel=0.05)
    assert not np.any(block["key"]["bias"])
    assert np.all(block["norm1"]["scale"] == 1)


def test_dc_sgd_trains_about_eight_million():
    """The last block (four square layers, two wide ones, two norms), pooler and classifier."""
    network = build("bert", (128,), 2, 30_522)
    params = jax.eval_shape(network.init, jax.random.key(0))
    trained = split(params, ["blocks/-1", "pooler", "classifier"]).trainable
    assert trained.keys() == {"blocks", "pooler", "classifier"}
    assert trained["blocks"].keys() == {"11"}
    square, wide = 768 * 768 + 768, 2 * 768 * 3072 + 3072 + 768
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(trained))
    assert count == 4 * square + wide + 4 * 768 + square + 768 * 2 + 2
    assert count == 7_680_002


def test_ghost_engine_with_the_last_block_trained_alone():
    network, params = tiny("bert", 9)
    trained, frozen = split(params, ["blocks/1", "pooler", "classifier"])
    tokens = np.random.default_rng(0).integers(1, 7, (ROWS, 9))
    tokens[1, 4:] = tokens[3, 1:] = 0

    def loss(trained, example):
        logits = network.apply(Parameters(trained, frozen).merged(), example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    check_one_pass(Case(loss, trained, (tokens, np.arange(ROWS) % 4)), "ghost", "float32")
    found = dpjax.explain(loss, trained, (jnp.asarray(tokens[0]), jnp.int32(0)))
    assert found.fallbacks == ()
    assert {meeting for leaf in found.leaves for meeting in leaf.meets} == {
        *("add", "dot_general", "mul"),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads = 5: expected a divisor of width = 768"),
        ({"positions": 127}, "positions = 127: expected at least the 128 of shape"),
        ({"layers": 0}, "layers = 0: expected an integer >= 1"),
        ({"separator": 0}, "separator = 0: expected an integer >= 1"),
        ({"dropout": 0.1}, "bert has no option 'dropout'"),
    ],
)
def test_bad_values(options, message):
    with pytest.raises(ValueError, match=message):
        build("bert", (128,), 2, 100, **options)
