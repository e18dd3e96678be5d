"""optax as it is: everything works behind privatize, and anywhere else one sentence says so."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax

KEY = jax.random.key(0)
PARAMS = {"w": jnp.zeros(3), "b": jnp.zeros(())}
DATA = jax.random.normal(jax.random.key(1), (8, 3))
MECHANISM = dpjax.methods.dp_sgd(1.0)
PRIVATE = dpjax.privatize(MECHANISM, 8, KEY)
LABELS = {"w": "a", "b": "b"}


def loss(params, x):
    return jnp.square(jnp.vdot(params["w"], x) + params["b"] - 1.0)


GRADS_OF = dpjax.per_example_grads(loss)

MISPLACED = {
    "clip": optax.chain(optax.clip(1.0), PRIVATE),
    "clip_by_global_norm": optax.chain(optax.clip_by_global_norm(1.0), PRIVATE),
    "scale": optax.chain(optax.scale(2.0), PRIVATE),
    "scale_by_adam": optax.chain(optax.adam(1e-3), PRIVATE),
    "apply_if_finite": optax.apply_if_finite(PRIVATE, 3),
    "masked": optax.masked(PRIVATE, {"w": True, "b": False}),
    "partition": optax.partition({"a": PRIVATE, "b": optax.sgd(1.0)}, LABELS),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_in_front_or_around_one_sentence_names_it(name):
    tx = MISPLACED[name]
    expected = "partition|masked" if name == "partition" else name
    with pytest.raises(
        TypeError, match=rf"optax's ({expected}) .*and optax's \1 behind it"
    ) as error:
        jax.jit(lambda state: tx.update(GRADS_OF(PARAMS, DATA), state, PARAMS)[0])(tx.init(PARAMS))
    assert "\n" not in str(error.value)


def test_multi_steps_is_told_of_clipped_sum():
    tx = optax.MultiSteps(PRIVATE, 2)
    with pytest.raises(TypeError, match=r"MultiSteps .* expected dpjax\.clipped_sum"):
        jax.jit(lambda state: tx.update(GRADS_OF(PARAMS, DATA), state, PARAMS)[0])(tx.init(PARAMS))


def test_a_jit_border_is_no_place_for_them():
    with pytest.raises(TypeError, match="cannot leave the function that made them"):
        jax.jit(lambda p: GRADS_OF(p, DATA))(PARAMS)
    with pytest.raises(TypeError, match="cannot leave the function that made them"):
        jax.tree.map(lambda g: g, GRADS_OF(PARAMS, DATA))


BEHIND = {
    "adam": optax.adam(1e-2),
    "inject_hyperparams": optax.inject_hyperparams(optax.adam)(learning_rate=1e-2),
    "apply_if_finite": optax.apply_if_finite(optax.adam(1e-2), 3),
    "masked": optax.masked(optax.sgd(1e-2), {"w": True, "b": False}),
    "partition": optax.partition({"a": optax.adam(1e-2), "b": optax.sgd(1e-2)}, LABELS),
    "clip": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2)),
    "multi_steps": optax.MultiSteps(optax.sgd(1e-2), 2).gradient_transformation(),
}


@pytest.mark.parametrize("name", BEHIND)
def test_behind_everything_works(name):
    tx = optax.chain(PRIVATE, BEHIND[name])

    @jax.jit
    def step(params, state):
        updates, state = tx.update(GRADS_OF(params, DATA), state, params)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(2):
        params, state = step(params, state)
    assert np.any(np.asarray(params["w"]) != 0)


@pytest.mark.parametrize("state", [(), None, (PRIVATE.init(PARAMS), ())])
def test_a_state_that_is_not_its_own(state):
    message = f"state = {type(state).__name__}: expected the PrivatizeState that tx.init returned"
    with pytest.raises(TypeError, match=message):
        PRIVATE.update(GRADS_OF(PARAMS, DATA), state, PARAMS)


def test_gradients_of_another_tree():
    other = {"w": jnp.zeros(3), "c": jnp.zeros(())}
    grads = dpjax.per_example_grads(lambda p, x: jnp.vdot(p["w"], x) + p["c"])(other, DATA)
    with pytest.raises(ValueError, match=r"grads is the pytree .*'c'.*: expected that of params"):
        PRIVATE.update(grads, PRIVATE.init(PARAMS), PARAMS)


class TestDrawnBatches:
    sampling = dpjax.sampling.Poisson(batch_size=4, dataset_size=8)

    def update(self, grads, params=PARAMS):
        tx = dpjax.privatize(MECHANISM, self.sampling, KEY)
        return tx.update(grads, tx.init(PARAMS), params)

    def test_its_own_batches_and_their_parts_are_taken(self):
        drawn = self.sampling.draw(KEY, 0)
        self.update(GRADS_OF(PARAMS, DATA, drawn))
        state = dpjax.privatize(MECHANISM, self.sampling, KEY).init(PARAMS)
        parts = [
            dpjax.clipped_sum(
                MECHANISM,
                GRADS_OF(PARAMS, DATA[start : start + 4], self.sampling.draw(KEY, 0, (start, 4))),
                state,
            )
            for start in (0, 4)
        ]
        whole = dpjax.clipped_sum(MECHANISM, GRADS_OF(PARAMS, DATA, drawn), state)
        np.testing.assert_allclose(
            (parts[0] + parts[1]).gradient["w"], whole.gradient["w"], rtol=1e-6
        )
        self.update(parts[0] + parts[1])

    def test_rows_gathered_elsewhere_are_taken(self):
        packed = self.sampling.draw(KEY, 0).packed()
        self.update(GRADS_OF(PARAMS, DATA[packed.indices % 8], packed))

    @pytest.mark.parametrize(
        ("make", "what"),
        [
            (lambda: GRADS_OF(PARAMS, DATA), "a hand-fed batch"),
            (lambda: {"w": DATA, "b": DATA[:, 0]}, "a plain pytree"),
            (
                lambda: GRADS_OF(
                    PARAMS, DATA, dpjax.sampling.FixedSize(4, dataset_size=8).draw(KEY, 0)
                ),
                r"a batch drawn by FixedSize",
            ),
            (
                lambda: GRADS_OF(
                    PARAMS, DATA, dpjax.sampling.Poisson(2, dataset_size=8).draw(KEY, 0)
                ),
                r"a batch drawn by Poisson\(batch_size=2",
            ),
        ],
    )
    def test_a_batch_that_it_did_not_draw_is_refused(self, make, what):
        with pytest.raises(
            ValueError, match=f"grads comes from {what}.*: expected a batch that Poisson"
        ):
            self.update(make())

    def test_a_sum_of_a_batch_by_hand_is_refused(self):
        state = dpjax.privatize(MECHANISM, self.sampling, KEY).init(PARAMS)
        part = dpjax.clipped_sum(MECHANISM, GRADS_OF(PARAMS, DATA), state)
        with pytest.raises(ValueError, match="grads comes from a hand-fed batch"):
            self.update(part)
        drawn = dpjax.clipped_sum(
            MECHANISM, GRADS_OF(PARAMS, DATA, self.sampling.draw(KEY, 0)), state
        )
        with pytest.raises(ValueError, match="expected parts of one batch"):
            part + drawn

    def test_with_a_number_everything_is_taken(self):
        tx = dpjax.privatize(MECHANISM, 4, KEY)
        for grads in (GRADS_OF(PARAMS, DATA), GRADS_OF(PARAMS, DATA, self.sampling.draw(KEY, 0))):
            tx.update(grads, tx.init(PARAMS), PARAMS)

    def test_a_sampling_without_a_size_cannot_run(self):
        for sampling in (dpjax.sampling.Poisson.with_rate(0.1), dpjax.sampling.FullBatch()):
            with pytest.raises(ValueError, match="expected one with a dataset_size"):
                dpjax.privatize(MECHANISM, sampling, KEY)
        with pytest.raises(ValueError, match=r"sampling = 0\.01: expected"):
            dpjax.privatize(MECHANISM, 0.01, KEY)

    @pytest.mark.parametrize("bad", ["6", None, True, dpjax.sampling.Poisson])
    def test_what_is_no_sampling(self, bad):
        message = f"sampling = {bad!r}: expected one of dpjax.sampling, such as "
        with pytest.raises(TypeError, match=re.escape(message)):
            dpjax.privatize(MECHANISM, bad, KEY)


class TestLosses:
    def test_aux_and_losses_come_with_the_update(self):
        def with_aux(params, x):
            return loss(params, x), {"x": x, "positive": x[0] > 0}

        for engine in ("vmap", "ghost", "auto"):
            for chunk in (None, 3):
                grads_of = dpjax.per_example_grads(with_aux, engine, chunk, has_aux=True)

                @jax.jit
                def step(state, grads_of=grads_of):
                    grads = grads_of(PARAMS, DATA)
                    updates, _ = PRIVATE.update(grads, state, PARAMS)
                    return updates, grads.losses, grads.aux

                updates, losses, aux = step(PRIVATE.init(PARAMS))
                np.testing.assert_allclose(losses, jax.vmap(loss, (None, 0))(PARAMS, DATA), 1e-6)
                np.testing.assert_array_equal(aux["x"], DATA)
                np.testing.assert_array_equal(aux["positive"], DATA[:, 0] > 0)
                assert aux["positive"].dtype == bool
                plain = jax.jit(lambda s: PRIVATE.update(GRADS_OF(PARAMS, DATA), s, PARAMS)[0])
                np.testing.assert_allclose(
                    updates["w"], plain(PRIVATE.init(PARAMS))["w"], rtol=1e-5, atol=1e-6
                )

    def test_momentum_reports_the_loss_as_it_was_given(self):
        tx = dpjax.privatize(dpjax.methods.psasc_momentum(1.0), 8, KEY)

        @jax.jit
        def step(state, params):
            grads = GRADS_OF(params, DATA)
            _, state = tx.update(grads, state, params)
            return state, grads.losses

        state = tx.init(PARAMS)
        for scale in (0.0, 1.0, 2.0):
            params = jax.tree.map(lambda p, s=scale: p + s, PARAMS)
            state, losses = step(state, params)
            np.testing.assert_allclose(losses, jax.vmap(loss, (None, 0))(params, DATA), 1e-5)

    def test_results_of_one_trace_are_not_used_in_another(self):
        @jax.jit
        def step(state):
            grads = GRADS_OF(PARAMS, DATA)
            jax.lax.cond(True, lambda: PRIVATE.update(grads, state, PARAMS)[0]["b"], lambda: 0.0)
            return grads.losses

        expected = jax.vmap(loss, (None, 0))(PARAMS, DATA)
        np.testing.assert_allclose(step(PRIVATE.init(PARAMS)), expected, 1e-6)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (lambda p, x: p["w"] * x, "expected one floating-point number for ONE example"),
            (lambda p, x: (loss(p, x), x), r"a pair \(loss, aux\) needs has_aux=True"),
            (lambda p, x: jnp.argmax(x), "expected one floating-point number"),
            (lambda p, x: None, "expected one floating-point number"),
        ],
    )
    def test_what_a_loss_returns(self, bad, message):
        with pytest.raises(ValueError, match=message):
            dpjax.per_example_grads(bad)(PARAMS, DATA)

    def test_has_aux_without_a_pair(self):
        with pytest.raises(ValueError, match=r"expected \(loss, aux\), as has_aux says"):
            dpjax.per_example_grads(loss, has_aux=True)(PARAMS, DATA)

    def test_several_arguments_are_one_pytree(self):
        def two(params, example):
            x, y = example
            return loss(params, x) * y

        assert dpjax.per_example_grads(two)(PARAMS, (DATA, jnp.ones(8))).norms.shape == (8,)
        with pytest.raises(
            TypeError, match=r"expected loss_fn\(params, example\).* such as \(x, y\)"
        ):
            dpjax.per_example_grads(lambda p, x, y: loss(p, x) * y)(PARAMS, DATA)

    def test_legacy_keys(self):
        def keyed(params, x, key):
            return loss(params, x) * jax.random.uniform(key)

        old = jax.random.PRNGKey(0)
        grads = dpjax.per_example_grads(keyed)(PARAMS, DATA, key=old)
        tx = dpjax.privatize(MECHANISM, 8, old)
        updates, _ = jax.jit(
            lambda s: tx.update(dpjax.per_example_grads(keyed)(PARAMS, DATA, key=old), s, PARAMS)
        )(tx.init(PARAMS))
        assert np.all(np.isfinite(grads.norms))
        assert np.all(np.isfinite(updates["w"]))
        dpjax.sampling.Poisson(4, dataset_size=8).draw(old, 0)

    def test_parameters(self):
        with pytest.raises(TypeError, match="complex64: expected a real parameter"):
            dpjax.per_example_grads(loss)({"w": jnp.zeros(3, jnp.complex64)}, DATA)
        for empty in ({}, {"w": jnp.arange(3)}):
            with pytest.raises(ValueError, match="params has no array of floating-point numbers"):
                dpjax.per_example_grads(loss)(empty, DATA)
        with pytest.raises(TypeError) as error:
            dpjax.per_example_grads(loss)(PARAMS, jnp.ones((8, 5)))
        assert any("ONE example" in note for note in error.value.__notes__)

    @pytest.mark.parametrize("bad", [3, "key", jnp.zeros(2), jax.random.split(KEY, 2)])
    def test_what_is_no_key(self, bad):
        with pytest.raises(TypeError, match="expected one JAX random key"):
            dpjax.per_example_grads(lambda p, x, key: loss(p, x))(PARAMS, DATA, key=bad)

    def test_forgetting_jit_warns_once_for_each_line(self):
        tx = optax.chain(PRIVATE, optax.sgd(0.1))

        def step(params, state):
            return tx.update(GRADS_OF(params, DATA), state, params)

        state = tx.init(PARAMS)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            jax.jit(step)(PARAMS, state)
            assert not seen
            for _ in range(3):
                _, state = step(PARAMS, state)
        (warned,) = seen
        assert "wrap the whole step in jax.jit" in str(warned.message)
        assert warned.filename == __file__


@pytest.mark.parametrize(("name", "who"), [("psasc_momentum", "inner momentum")])
def test_a_plain_pytree_cannot_change_its_loss(name, who):
    tx = dpjax.privatize(getattr(dpjax.methods, name)(1.0), 8, KEY)
    with pytest.raises(TypeError, match=f"grads is a plain pytree: .*{who}"):
        tx.update({"w": DATA, "b": DATA[:, 0]}, tx.init(PARAMS), PARAMS)


def test_adaclip_takes_the_engine_that_holds_vectors():
    tx = dpjax.privatize(dpjax.methods.adaclip(1.0), 8, KEY)
    tx.update(GRADS_OF(PARAMS, DATA), tx.init(PARAMS), PARAMS)  # auto becomes vmap
    ghost = dpjax.per_example_grads(loss, "ghost")(PARAMS, DATA)
    with pytest.raises(
        ValueError, match="engine = 'ghost' with adaclip: expected 'vmap' or 'auto'"
    ):
        tx.update(ghost, tx.init(PARAMS), PARAMS)


class TestCalibration:
    sampling = dpjax.sampling.Poisson(batch_size=100, dataset_size=10_000)

    @pytest.mark.parametrize(
        "mechanism",
        [
            dpjax.methods.dc_sgd_e(),
            dpjax.methods.du(steps=200, rho_mu=2.0),
            dpjax.methods.zhang_adaptive(steps_per_epoch=100),
            dpjax.methods.auto_dp_sgd_sound(steps_per_epoch=100, epochs=2, decay="time"),
        ],
        ids=lambda m: m.name,
    )
    def test_what_is_open_neither_runs_nor_is_accounted_until_calibrated(self, mechanism):
        assert not mechanism.calibrated
        assert not mechanism.guarantee.private
        for refused in (
            lambda: dpjax.privatize(mechanism, self.sampling, KEY),
            lambda: dpjax.epsilon(mechanism, self.sampling, 200, 1e-5),
            lambda: mechanism.sigma(0),
        ):
            with pytest.raises(ValueError, match=r"expected a number .*dpjax.calibrate finds it"):
                refused()
        found = dpjax.calibrate(mechanism, self.sampling, steps=200, epsilon=2.0, delta=1e-5)
        assert type(found) is type(mechanism)
        spent = dpjax.epsilon(found, self.sampling, 200, 1e-5)
        assert 2.0 * 0.999 <= spent <= 2.0
        again = dpjax.calibrate(found, self.sampling, steps=200, epsilon=2.0, delta=1e-5)
        assert float(again.sigma(0)) == pytest.approx(float(found.sigma(0)), rel=2e-3)

    def test_the_time_decays_rate_follows_its_first_value(self):
        mechanism = dpjax.methods.auto_dp_sgd_sound(steps_per_epoch=100, epochs=2, decay="time")
        found = dpjax.calibrate(mechanism, self.sampling, steps=200, epsilon=2.0, delta=1e-5)
        first, later = float(found.sigma(0)), float(found.sigma(150))
        assert later == pytest.approx(first / np.sqrt(1 + first / 2), rel=1e-5)
