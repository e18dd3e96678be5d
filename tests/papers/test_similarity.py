"""What is measured of gradients during training, against NumPy's gradients of a linear model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import data, noise
from dpjax.papers.figures.similarity import (
    EDGES,
    cosine,
    measured_experiments,
    read_similarity,
    similarity_rows,
    write_similarity,
)
from dpjax.papers.figures.squared_error import gradient_norms
from dpjax.train import Experiment, build_program, build_runner, member_key, root_key
from dpjax.train.folder import NOT_PRIVATE

RATE = 0.5


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def experiment(**method):
    return Experiment.from_plain(
        {
            "data": {"name": "digits"},
            "model": {"name": "linear"},
            "method": {"name": "dp_sgd", **method},
            "optimizer": {"name": "sgd", "learning_rate": RATE},
            "train": {"sampling": "full", "steps": 4, "engine": "vmap", "chunk": 1437},
            "run": {"seed": 1},
        }
    )


def started(one, digits):
    program = build_program(one, digits)
    return program, program.init(member_key(root_key(1), program.plan.experiment.identity, 0))


def numpy_gradients(program, params, digits):
    """Returns (N, d) gradients of a linear softmax model in float64, in the order of the leaves."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
    arrays = {leaf.ndim: np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)}
    pixels = program.pixels
    scaled = (digits.train.x / pixels.full - np.asarray(pixels.mean)) / np.asarray(pixels.std)
    x = scaled.reshape(len(scaled), -1)
    logits = x @ arrays[2] + arrays[1]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    error = p - np.eye(10)[digits.train.y]
    parts = {1: error, 2: (x[:, :, None] * error[:, None, :]).reshape(len(x), -1)}
    return np.concatenate([parts[len(shape)] for shape in shapes], axis=1)


def flat(tree):
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def numpy_cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_the_cosine_by_hand():
    one = {"a": jnp.array([[1.0, 0.0]]), "b": jnp.array([1.0])}
    other = {"a": jnp.array([[1.0, 5.0]]), "b": jnp.array([1.0])}
    assert float(cosine(one, other)) == pytest.approx(2 / np.sqrt(2 * 27), rel=1e-6)
    assert float(cosine(one, jax.tree.map(lambda leaf: -3 * leaf, one))) == pytest.approx(-1)
    assert float(cosine(one, jax.tree.map(jnp.zeros_like, one))) == 0.0


def test_without_noise_and_clipping_the_cosine_is_one(digits):
    rows = similarity_rows(experiment(threshold=1e6, noise_multiplier=0.0), digits, per_epoch=1)
    assert [row.step for row in rows] == [0, 1, 2, 3][: len(rows)]
    for row in rows:
        assert row.cosine == pytest.approx(1.0, abs=1e-5)
        assert row.mean_weight == pytest.approx(1.0)
        assert row.method == "dp_sgd"


def test_what_is_measured_is_what_the_step_releases(digits):
    one = experiment(threshold=0.5, noise_multiplier=40.0)
    row = similarity_rows(one, digits, per_epoch=1)[0]
    program, state = started(one, digits)
    gradients = numpy_gradients(program, state.params, digits)
    norms = np.linalg.norm(gradients, axis=1)
    found = (row.norm_10, row.norm_50, row.norm_90)
    np.testing.assert_allclose(found, np.quantile(norms, (0.1, 0.5, 0.9)), rtol=1e-4)
    assert row.mean_weight == pytest.approx(np.minimum(1, 0.5 / norms).mean(), rel=1e-4)
    assert row.bound == 0.5
    counts, _ = np.histogram(norms, EDGES)
    assert sum(row.counts) == len(norms)
    assert np.abs(np.subtract(row.counts, counts)).sum() <= 4  # float32 beside an edge
    # The step moves the parameters by -RATE times the private gradient.
    new, _ = build_runner(program, digits, one.run).advance(state, 1)
    moved = (flat(state.params) - flat(new.params)) / RATE
    assert row.cosine == pytest.approx(numpy_cosine(moved, gradients.mean(axis=0)), abs=1e-3)
    assert row.cosine < 0.9  # there is noise


def test_rows_are_stored_and_say_what_they_are(digits, tmp_path):
    rows = similarity_rows(experiment(threshold=1e6, noise_multiplier=0.0), digits, per_epoch=1)
    write_similarity(tmp_path / "new" / "similarity.csv", rows)
    text = (tmp_path / "new" / "similarity.csv").read_text()
    drawn = f"# noise_definition: {noise.DEFINITION}"
    assert text.startswith(f"# {NOT_PRIVATE}\n{drawn}\nmethod,step,epoch,cosine,")
    read = read_similarity(tmp_path / "new" / "similarity.csv")
    assert [row.counts for row in read] == [row.counts for row in rows]
    assert [row.norm_50 for row in read] == pytest.approx([row.norm_50 for row in rows], rel=1e-5)


def test_norms_at_some_steps_of_a_run(digits):
    one = experiment(threshold=0.5, noise_multiplier=1.0)
    found = gradient_norms(one, digits, (0, 2), examples=100)
    program, state = started(one, digits)
    assert found.dimension == 650
    expected = np.linalg.norm(numpy_gradients(program, state.params, digits)[:100], axis=1)
    np.testing.assert_allclose(found.norms[0], expected, rtol=1e-4)
    state, _ = build_runner(program, digits, one.run).advance(state, 1)
    state, _ = build_runner(program, digits, one.run).advance(state, 1)
    expected = np.linalg.norm(numpy_gradients(program, state.params, digits)[:100], axis=1)
    np.testing.assert_allclose(found.norms[2], expected, rtol=1e-4)


def test_the_four_runs_that_are_measured():
    runs = measured_experiments()
    assert [one.method["name"] for one in runs] == ["dp_sgd", "auto_s", "psac", "psasc"]
    for one in runs:
        assert (one.data.name, one.train.epochs, one.train.batch_size) == ("mnist", 3, 512)
        assert (one.optimizer.learning_rate, one.privacy.epsilon, one.run.seed) == (4.0, 3.0, 1)
        assert one.method["threshold"] == 0.3
