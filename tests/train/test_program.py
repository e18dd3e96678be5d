"""The pure program: one step against the public API by hand, many steps as one scan."""

import dataclasses
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.data.augment import AUGMENTATIONS, flip, shift
from dpjax.models.parameters import flat
from dpjax.sampling import FullBatch
from dpjax.train.feed import examples_of
from dpjax.train.step import Program
from tests.gradients.drawn import drawn_of, rows_of
from tests.marks import some
from tests.registry import METHODS
from tests.train.small import N, images, program

KEY = jax.random.key(3)
DATA = jax.device_put(examples_of(images().train))


def start(own, key=KEY):
    return jax.jit(own.init)(key)  # op by op it would compile dozens of small programs


def same_bytes(a, b):
    a, b = (jax.tree.map(_bits, tree) for tree in (a, b))
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(x == y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _bits(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def softmax_gradients(params, x, y):
    """Per-example gradients of a linear softmax model, in float64."""
    x = (np.asarray(x, np.float64).reshape(len(y), -1) / 16 - 0.25) / 0.5
    logits = x @ np.asarray(params["dense/kernel"], np.float64) + params["dense/bias"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = p / p.sum(axis=1, keepdims=True) - np.eye(3)[y]
    return residual, x[:, :, None] * residual[:, None, :]


def test_a_step_is_clipping_noise_and_descent_by_hand():
    """Two runs that differ in noise alone give the noise; the rest is NumPy in float64."""
    with_noise, without = program(), program(method__noise_multiplier=0.0)
    state = start(with_noise, KEY)
    bare = start(without, KEY)
    before = {k: np.asarray(v, np.float64) for k, v in flat(state.params).items()}
    noisy, _ = jax.jit(with_noise.step)(state, DATA)
    clean, released = jax.jit(without.step)(bare, DATA)

    rows = np.asarray(with_noise.draw(state).indices)[: int(with_noise.draw(state).size)]
    x, y = np.asarray(DATA.x)[rows], np.asarray(DATA.y)[rows]
    by_bias, by_kernel = softmax_gradients(before, x, y)
    norms = np.sqrt((by_bias**2).sum(1) + (by_kernel**2).sum((1, 2)))
    weights = np.minimum(1, 0.7 / norms)
    assert 0 < (weights < 1).sum() < len(rows) or (weights < 1).all()
    expected = {
        "dense/bias": before["dense/bias"] - 0.5 / 12 * weights @ by_bias,
        "dense/kernel": before["dense/kernel"] - 0.5 / 12 * np.tensordot(weights, by_kernel, 1),
    }
    for name, value in flat(clean.params).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=2e-6)
    assert float(released.threshold) == pytest.approx(0.7)
    noise = np.concatenate(
        [
            (np.asarray(noisy_leaf, np.float64) - expected[name]).ravel() * 12 / 0.5 / 0.7
            for name, noisy_leaf in flat(noisy.params).items()
        ]
    )
    # 111 standard normals: the sum of squares within five deviations, and not half or double.
    assert abs(np.mean(noise**2) - 1) < 5 * np.sqrt(2 / noise.size)


def test_steps_in_one_scan_are_the_same_steps_bit_for_bit_and_compile_once():
    own = program()
    traced = []

    def advance(state, data, steps):
        traced.append(1)
        return own.advance(state, data, steps, 6)

    compiled = jax.jit(advance)
    whole, released = compiled(start(own, KEY), DATA, 6)
    assert np.isfinite(released.threshold).all()
    for cut in ([1, 5], [2, 0, 3, 1], [1] * 6):
        state = start(own, KEY)
        for steps in cut:
            state, some = compiled(state, DATA, steps)
            assert np.isfinite(some.threshold[:steps]).all()
            assert np.isnan(some.threshold[steps:]).all()
        assert same_bytes(state, whole)
    assert len(traced) == 1
    assert compiled._cache_size() == 1


def test_one_seed_gives_the_same_run_and_another_seed_other_batches_and_noise():
    own = program()
    runs = [jax.jit(own.step)(start(own, jax.random.key(seed)), DATA)[0] for seed in (1, 1, 2)]
    assert same_bytes(runs[0], runs[1])
    assert not same_bytes(runs[0].params, runs[2].params)
    draws = [own.draw(start(own, jax.random.key(seed))) for seed in (1, 2)]
    assert set(np.asarray(draws[0].indices)) != set(np.asarray(draws[1].indices))
    keys = [start(own, jax.random.key(seed)).opt_state[0].key for seed in (1, 2)]
    assert keys[0] != keys[1]


def test_streams_of_one_run_are_apart():
    """Initialisation, sampling, augmentation and noise never read the same key."""
    key = KEY
    names = ("init", "sampling", "augment", "noise", "noise/gradient", "noise/statistic")
    data = {jax.random.key_data(dpjax.noise.stream(key, name)).tobytes() for name in names}
    assert len(data) == len(names)


@pytest.mark.parametrize(
    "name",
    some(METHODS, ["dp_sgd", "dc_sgd_e", "adaclip", "psasc_momentum_full_batch", "auto_dp_sgd"]),
)
def test_every_method_trains(name):
    """Three steps of every method in the registry, through the same program."""
    method = METHODS[name](1.0)
    full = name == "psasc_momentum_full_batch"
    own = program(train__batch_size=30)  # the noise of some statistics follows the batch size
    sampling = FullBatch(N) if full else own.plan.sampling
    if full:
        method = dpjax.methods.psasc_momentum_full_batch(1.0, dataset_size=N)
    plan = dataclasses.replace(own.plan, method=method, sampling=sampling)
    own = Program(plan, own.network, own.pixels)
    state, released = jax.jit(own.advance, static_argnums=3)(start(own, KEY), DATA, 3, 3)
    assert int(state.step) == 3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert np.isnan(released.sigma).all() == (name == "auto_dp_sgd")


def test_the_average_of_the_parameters():
    own = program(train__ema=0.9)
    state = start(own, KEY)
    expected = np.asarray(flat(state.params)["dense/kernel"], np.float64)
    step = jax.jit(own.step)
    for t in range(6):
        state, _ = step(state, DATA)
        decay = min(0.9, (1 + t) / (10 + t))
        now = np.asarray(flat(state.params)["dense/kernel"], np.float64)
        expected = decay * expected + (1 - decay) * now
    np.testing.assert_allclose(flat(state.ema)["dense/kernel"], expected, rtol=1e-5, atol=1e-6)
    released = own.released_params(state)
    assert same_bytes(released, state.ema)
    assert not same_bytes(state.ema, state.params)


def test_frozen_parameters_are_neither_trained_nor_clipped_nor_noised():
    everything = program(model__name="mlp", model__hidden=4)
    last = program(model__name="mlp", model__hidden=4, model__trainable=["dense/1"])
    state, whole = start(last, KEY), start(everything, KEY)
    names = set(flat(whole.params))
    assert set(flat(state.params)) == {n for n in names if n.startswith("dense/1/")}
    assert set(flat(state.frozen)) == {n for n in names if n.startswith("dense/0/")}
    after, _ = jax.jit(last.step)(state, DATA)
    assert same_bytes(after.frozen, state.frozen)
    assert not same_bytes(after.params, state.params)
    # The norm that is clipped is that of the trainable leaves alone.
    drawn = drawn_of(np.arange(10), 10, rows_of(DATA))
    part = last.gradients_of(state)(state.params, DATA, drawn)
    full = everything.gradients_of(whole)(whole.params, DATA, drawn)
    groups = {"dense": {"0": "frozen", "1": "trained"}}
    np.testing.assert_allclose(part.norms, full.group_norms(groups)[:, 1], rtol=1e-5)
    assert np.all(part.norms <= full.norms)
    assert np.mean(part.norms < full.norms) > 0.5  # the others' hidden units are all off
    with pytest.raises(ValueError, match=r"model.trainable = 'head': no such parameter"):
        program(model__trainable=["head"]).init(KEY)


def test_weights_from_a_file_replace_new_ones():
    own = program()
    given = {"dense/bias": np.array([1.0, 2.0, 3.0], np.float32)}
    params = flat(own.init(KEY, given).params)
    np.testing.assert_array_equal(params["dense/bias"], given["dense/bias"])
    assert same_bytes(params["dense/kernel"], flat(own.init(KEY).params)["dense/kernel"])
    with pytest.raises(ValueError, match=r"dense/bais: unknown; did you mean 'dense/bias'"):
        own.init(KEY, {"dense/bais": given["dense/bias"]})
    with pytest.raises(ValueError, match=r"dense/bias has shape \(2,\): expected \(3,\)"):
        own.init(KEY, {"dense/bias": np.zeros(2, np.float32)})


COPIES = {"train__augment": ["shift", "flip"], "train__multiplicity": 4}


class TestAugmentation:
    def test_the_gradient_is_the_mean_over_the_copies(self):
        own, plain = program(**COPIES), program()
        state = start(own, KEY)
        key = jax.random.fold_in(dpjax.noise.stream(state.key, "augment"), 0)
        example = jax.tree.map(lambda leaf: leaf[7], DATA)
        loss = own.loss(state.frozen, key)
        copies = jax.random.split(jax.random.fold_in(key, 7), 4)
        bare = plain.loss(state.frozen, key)

        def of_copy(params, copy_key):
            x = example.x
            for i, name in enumerate(("shift", "flip")):
                fn = AUGMENTATIONS[name]
                x = fn(x, jax.random.fold_in(copy_key, i))
            return bare(params, example._replace(x=x))

        grads = [jax.grad(of_copy)(state.params, k) for k in copies]
        mean = jax.tree.map(lambda *g: sum(np.asarray(v, np.float64) for v in g) / 4, *grads)
        found = jax.grad(loss)(state.params, example)
        for name, leaf in flat(found).items():
            np.testing.assert_allclose(leaf, flat(mean)[name], rtol=1e-4, atol=1e-6)
        assert not same_bytes(grads[0], grads[1])

    def test_one_example_still_counts_once(self):
        own = program(method__noise_multiplier=0.0, optimizer__learning_rate=1.0, **COPIES)
        state = start(own, KEY)
        one = replace(drawn_of([7], 1, rows_of(DATA)), sampling=own.plan.sampling)
        grads = own.gradients_of(state)(state.params, DATA, one)
        after, _ = own.finish(state, grads)
        moved = jax.tree.map(lambda a, b: 12 * (a - b), state.params, after.params)
        assert float(optax.tree.norm(moved)) <= 0.7 * (1 + 2e-6)

    def test_copies_depend_on_the_example_and_the_step_and_not_on_its_place(self):
        own = program(**COPIES)
        state = start(own, KEY)
        norms = []
        for indices in ([7, 20], [20, 7]):
            drawn = drawn_of(indices, 2, rows_of(DATA))
            norms.append(own.gradients_of(state)(state.params, DATA, drawn).norms)
        np.testing.assert_allclose(norms[0], norms[1][::-1], rtol=1e-6)
        later = state._replace(step=jnp.int32(1))
        again = own.gradients_of(later)(state.params, DATA, drawn).norms
        assert not np.allclose(again, norms[1], rtol=1e-4)

    def test_shift_and_flip_by_hand(self):
        image = jnp.arange(6 * 6 * 1, dtype=jnp.float32).reshape(6, 6, 1)
        padded = np.pad(np.asarray(image), [(1, 1), (1, 1), (0, 0)], mode="reflect")
        crops = {padded[i : i + 6, j : j + 6].tobytes() for i in range(3) for j in range(3)}
        keys = jax.random.split(KEY, 200)
        shifted = {np.asarray(s).tobytes() for s in jax.vmap(lambda k: shift(image, k))(keys)}
        assert shifted == crops
        flipped = np.asarray(jax.vmap(lambda k: flip(image, k))(keys))
        mirrored = (flipped == np.asarray(image)[:, ::-1]).all(axis=(1, 2, 3))
        assert ((flipped == np.asarray(image)).all(axis=(1, 2, 3)) != mirrored).all()
        assert 60 < mirrored.sum() < 140

    def test_refusals(self):
        with pytest.raises(ValueError, match="did you mean 'flip'"):
            program(train__augment=["flp"]).loss({}, KEY)


def test_evaluation_counts_right_answers():
    own, data = program(), images()
    state, test = start(own, KEY), examples_of(data.test)
    scores = own.evaluate(state, test)
    params = {k: np.asarray(v, np.float64) for k, v in flat(state.params).items()}
    x = (data.test.x.reshape(len(data.test.y), -1) / 16 - 0.25) / 0.5
    logits = x @ params["dense/kernel"] + params["dense/bias"]
    assert float(scores.accuracy) == pytest.approx(np.mean(logits.argmax(1) == data.test.y))
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -log_p[np.arange(len(x)), data.test.y].mean()
    assert float(scores.loss) == pytest.approx(loss, rel=1e-5)


def test_unit_scale_leaves_the_channels_alone():
    own = program(data__scale="unit")
    assert own.pixels == (16.0, (0.0,), (1.0,))
