"""Several labels at once: a sigmoid for each, the mean of their losses, the share that is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.data import Dataset, Split
from dpjax.train import build_program
from dpjax.train.step import Examples
from tests.train.small import experiment

RNG = np.random.default_rng(0)


def test_the_loss_and_the_accuracy_against_numpy():
    x, y = RNG.normal(size=(6, 4)).astype(np.float32), RNG.integers(0, 2, (6, 3)).astype(np.int32)
    dataset = Dataset("several", Split(x, y), Split(x, y), 3)
    program = build_program(
        experiment(data__name="several", train__batch_size=2, train__chunk=2), dataset
    )
    state = program.init(jax.random.key(0))
    params = state.params
    kernel, bias = (np.asarray(params["dense"][k], np.float64) for k in ("kernel", "bias"))
    logits = x.astype(np.float64) @ kernel + bias
    losses = np.mean(np.log1p(np.exp(-logits)) * y + np.log1p(np.exp(logits)) * (1 - y), axis=1)
    loss = program.loss({}, jax.random.key(0))
    rows = Examples(jnp.asarray(x), jnp.asarray(y), jnp.arange(6))
    got = [loss(params, Examples(*(leaf[i] for leaf in rows))) for i in range(6)]
    np.testing.assert_allclose(got, losses, rtol=1e-5)
    right, again = program.outcomes(state, rows)
    np.testing.assert_allclose(right, np.mean((logits > 0) == (y == 1), axis=1), rtol=1e-6)
    np.testing.assert_allclose(again, losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.zeros((2, 4), int), r"4 train labels: expected 3"),
        (np.full((2, 3), 2), r"train labels from 2 to 2: expected 0 to 1"),
    ],
)
def test_labels_that_do_not_fit_are_refused(y, said):
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match=said):
        Dataset("several", Split(x, y), Split(x, y), 3)


@pytest.mark.parametrize("kind", ["U1", "O", "c8", "?"])
def test_examples_that_are_no_numbers_are_refused(kind):
    y = np.zeros(4, np.int32)
    good, bad = (Split(np.zeros((4, 2), dtype), y) for dtype in ("f4", kind))
    for train, test, part in ((bad, good, "train"), (good, bad, "test")):
        with pytest.raises(TypeError, match=f"d: {part} examples of .*: expected numbers"):
            Dataset("d", train, test, 2)
