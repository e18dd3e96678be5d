"""NNX, Linen, Equinox, Haiku and plain pytrees: one network, the same losses, norms and sums."""

import re
from pathlib import Path

import chex
import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import dpjax

as_pure = nnx.as_pure if hasattr(nnx, "as_pure") else nnx.pure  # Flax 0.12.2

PAGE = Path(__file__).parent.parent / "docs" / "frameworks.md"
RECIPES = dict(
    re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
W1, B1, W2, B2 = (
    jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((4, 8), (8,), (8, 3), (3,))
)
DATA = {
    "x": jnp.asarray(RNG.normal(size=(16, 4)), jnp.float32),
    "y": jnp.asarray(RNG.integers(0, 3, 16)),
}
MECHANISM = dpjax.methods.dp_sgd(noise_multiplier=0.0, threshold=0.5)


def cross_entropy(logits, label):
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def plain():
    def loss(params, example):
        hidden = jnp.tanh(example["x"] @ params[0] + params[1])
        return cross_entropy(hidden @ params[2] + params[3], example["y"])

    params = (W1, B1, W2, B2)
    return params, dpjax.per_example_grads(loss), lambda tree: tree


def of_linen():
    model = linen.Sequential([linen.Dense(8), jnp.tanh, linen.Dense(3)])
    params = {
        "layers_0": {"kernel": W1, "bias": B1},
        "layers_2": {"kernel": W2, "bias": B2},
    }

    def loss(params, example):
        return cross_entropy(model.apply({"params": params}, example["x"]), example["y"])

    def flat(tree):
        return tuple(tree[f"layers_{i}"][leaf] for i in (0, 2) for leaf in ("kernel", "bias"))

    return params, dpjax.per_example_grads(loss), flat


def nnx_model():
    first, second = nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 3, rngs=nnx.Rngs(1))
    first.kernel[...], first.bias[...] = W1, B1
    second.kernel[...], second.bias[...] = W2, B2
    return nnx.Sequential(first, jnp.tanh, second)


def nnx_loss(model, example):
    return cross_entropy(model(example["x"]), example["y"])


def nnx_flat(tree):
    layers = nnx.to_pure_dict(tree)["layers"]
    return tuple(layers[i][leaf] for i in (0, 2) for leaf in ("kernel", "bias"))


def of_nnx():
    return nnx_model(), dpjax.nnx.per_example_grads(nnx_loss), nnx_flat


def of_equinox():
    model = eqx.nn.MLP(4, 3, width_size=8, depth=1, activation=jnp.tanh, key=KEY)
    layers = [
        eqx.tree_at(lambda m: (m.weight, m.bias), layer, (w.T, b))
        for layer, w, b in zip(model.layers, (W1, W2), (B1, B2), strict=True)
    ]
    model = eqx.tree_at(lambda m: m.layers, model, tuple(layers))

    def loss(model, example):
        return cross_entropy(model(example["x"]), example["y"])

    def flat(tree):
        first, second = tree.layers
        return first.weight.T, first.bias, second.weight.T, second.bias

    return model, dpjax.per_example_grads(loss), flat


def of_haiku():
    def network(x):
        return hk.nets.MLP([8, 3], activation=jnp.tanh, name="net")(x)

    model = hk.without_apply_rng(hk.transform(network))
    params = {"net/~/linear_0": {"w": W1, "b": B1}, "net/~/linear_1": {"w": W2, "b": B2}}

    def loss(params, example):
        return cross_entropy(model.apply(params, example["x"]), example["y"])

    def flat(tree):
        return tuple(tree[f"net/~/linear_{i}"][leaf] for i in (0, 1) for leaf in ("w", "b"))

    return params, dpjax.per_example_grads(loss), flat


FRAMEWORKS = {"linen": of_linen, "nnx": of_nnx, "equinox": of_equinox, "haiku": of_haiku}


def seen(made):
    params, grads_of, flat = made()
    grads = grads_of(params, DATA)
    own = as_pure(nnx.state(params, nnx.Param)) if isinstance(params, nnx.Module) else params
    state = dpjax.privatize(MECHANISM, 16, KEY).init(dpjax.gradients.trainable(own))
    total = dpjax.clipped_sum(MECHANISM, grads, state)
    return grads.losses, grads.norms, flat(total.gradient)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_losses_norms_and_clipped_sums_are_those_of_plain_jax(name):
    chex.assert_trees_all_close(seen(FRAMEWORKS[name]), seen(plain), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_run_when_pasted_alone(name):
    code = RECIPES[name]
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    exec(compile(code, name, "exec"), {})


def test_the_whole_loop_takes_twelve_lines():
    (code,) = (code for code in RECIPES.values() if "dpjax.fit(" in code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12


def test_every_framework_has_a_recipe():
    assert {"Flax NNX", "Flax Linen", "Equinox", "Haiku"} <= RECIPES.keys()


class TestNnx:
    def optimizer(self, model, wrt=nnx.Param, sigma=1.0):
        mechanism = dpjax.methods.dp_sgd(sigma, threshold=0.5)
        tx = optax.chain(dpjax.privatize(mechanism, 16, KEY), optax.sgd(0.5))
        return dpjax.nnx.Optimizer(model, tx, wrt=wrt)

    def test_update_is_that_of_the_transformation(self):
        model, reference = nnx_model(), nnx_model()
        optimizer = self.optimizer(model)
        assert isinstance(optimizer, nnx.Optimizer)

        @nnx.jit
        def step(model, optimizer):
            optimizer.update(model, dpjax.nnx.per_example_grads(nnx_loss)(model, DATA))

        step(model, optimizer)
        params = as_pure(nnx.state(reference, nnx.Param))
        tx = optimizer.tx
        grads = dpjax.nnx.per_example_grads(nnx_loss)(reference, DATA)
        updates, _ = tx.update(grads, tx.init(params), params)
        expected = optax.apply_updates(params, updates)
        got = as_pure(nnx.state(model, nnx.Param))
        chex.assert_trees_all_close(got, expected, rtol=1e-6, atol=1e-7)
        assert int(optimizer.step[...]) == 1

    def test_under_scan(self):
        model, alone = nnx_model(), nnx_model()
        optimizer, one = self.optimizer(model), self.optimizer(alone)

        def step(carry, _):
            model, optimizer = carry
            optimizer.update(model, dpjax.nnx.per_example_grads(nnx_loss)(model, DATA))
            return (model, optimizer), None

        nnx.jit(nnx.scan(step, length=3))((model, optimizer), None)
        for _ in range(3):
            nnx.jit(lambda m, o: step((m, o), None)[1])(alone, one)
        trained, expected = (nnx.state(m, nnx.Param) for m in (model, alone))
        chex.assert_trees_all_close(trained, expected, rtol=1e-5, atol=1e-6)
        assert int(optimizer.step[...]) == 3

    def test_frozen_by_wrt(self):
        class Head(nnx.Param):
            pass

        model = nnx_model()
        model.layers[2].kernel = Head(W2)
        model.layers[2].bias = Head(B2)
        optimizer = self.optimizer(model, wrt=Head)
        grads_of = dpjax.nnx.per_example_grads(nnx_loss, wrt=Head)
        nnx.jit(lambda m, o: o.update(m, grads_of(m, DATA)))(model, optimizer)
        np.testing.assert_array_equal(model.layers[0].kernel[...], W1)
        assert np.abs(model.layers[2].kernel[...] - W2).max() > 0

    def test_dropout_draws_by_the_rows_number(self):
        """The same rows in another order, or in chunks, drop the same units."""
        model = nnx.Sequential(
            nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))
        )

        def loss(model, example):
            return jnp.sum(jnp.square(model(example["x"])))

        with pytest.raises(ValueError, match=r"holds random streams \(nnx.Rngs\): expected a key"):
            dpjax.nnx.per_example_grads(loss)(model, DATA)
        drawn = dpjax.sampling.FullBatch(16).draw(KEY, 0)
        whole = dpjax.nnx.per_example_grads(loss)(model, DATA, drawn, KEY).norms
        parts = dpjax.nnx.per_example_grads(loss, chunk=5)(model, DATA, drawn, KEY).norms
        np.testing.assert_allclose(whole, parts, rtol=1e-5)
        again = dpjax.nnx.per_example_grads(loss)(model, DATA, drawn, jax.random.key(1)).norms
        assert np.abs(whole - again).max() > 1e-2

    def test_group_norm_is_taken_and_batch_norm_refused(self):
        rngs = nnx.Rngs(0)
        good = nnx.Sequential(nnx.Linear(4, 8, rngs=rngs), nnx.GroupNorm(8, 2, rngs=rngs))
        bad = nnx.Sequential(nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs))
        grads_of = dpjax.nnx.per_example_grads(lambda m, e: jnp.sum(jnp.cos(m(e["x"][None]))))
        assert np.all(np.isfinite(grads_of(nnx.merge(*nnx.split(good)), DATA).norms))
        with pytest.raises(ValueError, match="keeps batch statistics"):
            grads_of(bad, DATA)

    def test_the_plain_optimizer_says_what_to_use(self):
        model = nnx_model()
        plain_one = nnx.Optimizer(model, self.optimizer(model).tx, wrt=nnx.Param)
        grads = dpjax.nnx.per_example_grads(nnx_loss)(model, DATA)
        message = r"^nnx\.Optimizer takes no per-example gradients: expected dpjax\.nnx\.Optimizer"
        with pytest.raises(TypeError, match=message):
            plain_one.update(model, grads)
        with pytest.raises(TypeError, match=message):
            nnx.jit(
                lambda m, o: o.update(m, dpjax.nnx.per_example_grads(nnx_loss)(m, DATA)),
            )(model, plain_one)

    def test_the_model_comes_first(self):
        model = nnx_model()
        optimizer = self.optimizer(model)
        grads = dpjax.nnx.per_example_grads(nnx_loss)(model, DATA)
        total = dpjax.clipped_sum(MECHANISM, grads, as_pure(optimizer.opt_state))
        for swapped in (grads, total):
            message = rf"^model = {type(swapped).__name__}: expected update\(model, grads\)"
            with pytest.raises(TypeError, match=message):
                optimizer.update(swapped, model)

    def test_a_sum_of_parts_and_hyperparameters_behind(self):
        """Parts add up to the batch, and the learning rate can be changed between steps."""
        sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=0.5)
        tx = optax.chain(dpjax.privatize(MECHANISM, 16, KEY), sgd)
        model, whole = nnx_model(), nnx_model()
        by_parts = dpjax.nnx.Optimizer(model, tx, wrt=nnx.Param)
        at_once = dpjax.nnx.Optimizer(whole, tx, wrt=nnx.Param)
        grads_of = dpjax.nnx.per_example_grads(nnx_loss, engine="ghost")

        def part(rows):
            batch = jax.tree.map(lambda x: x[rows], DATA)
            return dpjax.clipped_sum(MECHANISM, grads_of(model, batch), by_parts.opt_state)

        by_parts.update(model, part(slice(0, 8)) + part(slice(8, 16)))
        at_once.update(whole, grads_of(whole, DATA))
        trained, expected = (nnx.state(m, nnx.Param) for m in (model, whole))
        chex.assert_trees_all_close(trained, expected, rtol=1e-5, atol=1e-6)
        by_parts.opt_state[1].hyperparams["learning_rate"][...] = 0.0
        by_parts.update(model, part(slice(0, 16)))
        chex.assert_trees_all_equal(nnx.state(model, nnx.Param), trained)
        assert int(by_parts.step[...]) == 2

    def test_aux_the_ghost_engine_and_a_legacy_key(self):
        def with_aux(model, example):
            logits = model(example["x"])
            return cross_entropy(logits, example["y"]), {"label": jnp.argmax(logits)}

        model = nnx_model()
        grads_of = dpjax.nnx.per_example_grads(with_aux, engine="ghost", has_aux=True)
        grads = grads_of(model, DATA, key=jax.random.PRNGKey(0))
        assert grads.aux["label"].tolist() == jnp.argmax(model(DATA["x"]), -1).tolist()
        reference = dpjax.nnx.per_example_grads(nnx_loss)(model, DATA)
        np.testing.assert_allclose(grads.norms, reference.norms, rtol=1e-5)
        np.testing.assert_allclose(grads.losses, reference.losses, rtol=1e-6)

    @pytest.mark.parametrize(
        ("loss", "options", "error", "message"),
        [
            (nnx_loss, {"chunk": 0}, ValueError, "chunk = 0: expected an integer >= 1"),
            (nnx_loss, {"engine": "vmpa"}, ValueError, "engine = 'vmpa': did you mean 'vmap'"),
            (3, {}, TypeError, "loss_fn = 3: expected a function"),
            (lambda m, x, y: 0.0, {}, TypeError, r"expected loss_fn\(model, example\).*\(x, y\)$"),
            (lambda m, x, key: 0.0, {}, TypeError, r"expected loss_fn\(model, example\)"),
        ],
    )
    def test_what_is_refused_at_construction(self, loss, options, error, message):
        with pytest.raises(error, match=message):
            dpjax.nnx.per_example_grads(loss, **options)

    def test_nothing_printed_shows_the_noise_key(self):
        key = jax.random.wrap_key_data(np.array([123456789, 987654321], np.uint32))
        tx = optax.chain(dpjax.privatize(MECHANISM, 16, key), optax.sgd(0.5))
        model = nnx_model()
        optimizer = dpjax.nnx.Optimizer(model, tx, wrt=nnx.Param)
        grads_of = dpjax.nnx.per_example_grads(nnx_loss)
        for step in (0, 1):
            values = (optimizer, nnx.Dict(held=optimizer), nnx.state(optimizer))
            for shown in (str(optimizer), *map(repr, values)):
                assert "123456789" not in shown
                assert "NoiseKey(value=<private>)" in shown
                assert f"Array({step}, dtype=int32)" in shown
            nnx.jit(lambda m, o: o.update(m, grads_of(m, DATA)))(model, optimizer)
        assert optimizer.opt_state[0].key[...] == key

    def test_fit_takes_a_model_without_random_streams(self):
        sampling = dpjax.sampling.Poisson(batch_size=8, dataset_size=16)

        def fitted(model, **options):
            mechanism, optimizer = dpjax.methods.dp_sgd(1.0), optax.adam(0.1)
            given = (nnx_loss, model, DATA, mechanism, sampling, optimizer)
            return dpjax.fit(*given, 2, KEY, **options)

        model = nnx_model()
        trained = fitted(model)
        np.testing.assert_array_equal(model.layers[0].kernel[...], W1)  # the argument stays
        assert np.abs(trained.params.layers[0].kernel[...] - W1).max() > 0
        assert trained.params(DATA["x"]).shape == (16, 3)
        assert trained.state.step == 2
        assert fitted(model, state=trained.state).state.step == 4
        model = nnx.Sequential(model, nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
        with pytest.raises(ValueError, match=r"params holds random streams \(nnx\.Rngs\)"):
            fitted(model)


class TestEquinox:
    def test_leaves_that_are_no_float_arrays_are_held(self):
        class Model(eqx.Module):
            w: jax.Array
            table: jax.Array
            rate: float
            act: object

            def __call__(self, x):
                return self.act(x @ self.w) * self.rate + self.table[1]

        model = Model(W1, jnp.arange(3), 0.5, jnp.tanh)
        grads_of = dpjax.per_example_grads(lambda m, e: jnp.sum(m(e["x"])))
        own = eqx.filter(model, eqx.is_inexact_array)
        tx = optax.chain(dpjax.privatize(MECHANISM, 16, KEY), optax.adam(0.1))
        grads = grads_of(model, DATA)
        updates, _ = tx.update(grads, tx.init(own), model)
        assert jax.tree.structure(updates) == jax.tree.structure(own)
        moved = eqx.apply_updates(model, updates)
        assert np.abs(moved.w - W1).max() > 0
        np.testing.assert_array_equal(moved.table, model.table)

    def test_fit_takes_a_module(self):
        model, _, _ = of_equinox()
        sampling = dpjax.sampling.Poisson(batch_size=8, dataset_size=16)
        fitted = dpjax.fit(
            lambda m, e: cross_entropy(m(e["x"]), e["y"]),
            model,
            DATA,
            dpjax.methods.dp_sgd(1.0),
            sampling,
            optax.sgd(0.1),
            3,
            KEY,
        )
        assert fitted.params(DATA["x"][0]).shape == (3,)
