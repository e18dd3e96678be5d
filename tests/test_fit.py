"""`dpjax.fit` is the parts put together by hand: the same bits, resumable, in one call."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import noise

N, B, STEPS = 96, 24, 7
KEY = jax.random.key(3)
DATA = {
    "x": jax.random.normal(jax.random.key(1), (N, 5)),
    "y": jnp.arange(N) % 2 * 1.0,
}
PARAMS = {"w": jnp.zeros(5), "b": jnp.zeros(())}
SAMPLING = dpjax.sampling.Poisson(batch_size=B, dataset_size=N)
METHODS = {
    "dp_sgd": dpjax.methods.dp_sgd(1.0),
    "dc_sgd_e": dpjax.methods.dc_sgd_e(1.0),
    "psasc_momentum": dpjax.methods.psasc_momentum(1.0),
    "adaclip": dpjax.methods.adaclip(1.0),
}


def loss(params, example):
    return jnp.square(example["x"] @ params["w"] + params["b"] - example["y"])


def noisy_loss(params, example, key):
    return loss(params, example) * (1 + 0.1 * jax.random.normal(key))


def by_hand(mechanism, loss_fn=loss):
    """Returns the parameters and the thresholds of every step."""
    tx = optax.chain(dpjax.privatize(mechanism, SAMPLING, KEY), optax.adam(0.1))
    grads_of = dpjax.per_example_grads(loss_fn)

    @jax.jit
    def run(params, state):
        def step(carry, t):
            params, state = carry
            own = noise.fold(noise.stream(KEY, "loss"), t) if loss_fn is noisy_loss else None
            grads = grads_of(params, DATA, SAMPLING.draw(KEY, t), own)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), state[0].released.threshold

        return jax.lax.scan(step, (params, state), jnp.arange(STEPS))

    (params, _), thresholds = run(PARAMS, tx.init(PARAMS))
    return params, thresholds


def fitted(mechanism, steps=STEPS, loss_fn=loss, **options):
    return dpjax.fit(
        loss_fn, PARAMS, DATA, mechanism, SAMPLING, optax.adam(0.1), steps, KEY, **options
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_same_bits_as_the_parts(name):
    params, thresholds = by_hand(METHODS[name])
    found = fitted(METHODS[name])
    chex.assert_trees_all_equal(found.params, params)
    np.testing.assert_array_equal(found.released.threshold, thresholds)


def test_a_loss_with_a_key():
    params, _ = by_hand(METHODS["dp_sgd"], noisy_loss)
    chex.assert_trees_all_equal(fitted(METHODS["dp_sgd"], loss_fn=noisy_loss).params, params)


@pytest.mark.parametrize("name", ["dc_sgd_e", "psasc_momentum"])
def test_stopped_and_resumed_it_ends_the_same(name):
    whole = fitted(METHODS[name])
    first = fitted(METHODS[name], steps=3)
    rest = fitted(METHODS[name], steps=STEPS - 3, state=first.state)
    chex.assert_trees_all_close(rest.params, whole.params, rtol=1e-6)
    assert (rest.state.step, len(rest.released.sigma)) == (STEPS, STEPS - 3)
    assert rest.epsilon(1e-3) == whole.epsilon(1e-3)


def test_the_ledger_is_that_of_what_ran():
    mechanism = METHODS["dc_sgd_e"]
    expected = dpjax.epsilon(mechanism, SAMPLING, STEPS, delta=1e-3)
    assert float(fitted(mechanism).epsilon(1e-3)) == pytest.approx(float(expected), rel=1e-6)
    # After a change of the noise, both parts are in it.
    first = fitted(mechanism, steps=3)
    louder = fitted(mechanism.replace(noise_multiplier=2.0), steps=4, state=first.state)
    noises = [entry.mechanism.noise_multiplier for entry in louder.ledger.entries]
    assert noises == [1.0, 2.0]
    assert [entry.steps for entry in louder.ledger.entries] == [3, 4]


def test_the_callback_sees_the_run_as_it_goes():
    seen = []
    found = fitted(METHODS["dp_sgd"], callback=seen.append, every=3)
    assert [each.state.step for each in seen] == [3, 6, 7]
    assert [len(each.released.sigma) for each in seen] == [3, 6, 7]
    chex.assert_trees_all_close(found.params, fitted(METHODS["dp_sgd"]).params, rtol=1e-6)


def test_no_key_is_shown():
    """The words of the key would be in the repr of a plain dataclass."""
    state = fitted(METHODS["dp_sgd"], 1).state
    assert "key" not in repr(state)
    assert repr(state).startswith("FitState(step=1, ")


def test_what_is_refused():
    first = fitted(METHODS["dp_sgd"], steps=1)
    with pytest.raises(ValueError, match="key: expected the key that the state was made with"):
        dpjax.fit(
            *(loss, PARAMS, DATA, METHODS["dp_sgd"], SAMPLING, optax.sgd(0.1), 1),
            jax.random.key(9),
            state=first.state,
        )
    with pytest.raises(ValueError, match=r"noise_multiplier = None: .* dpjax.calibrate finds it"):
        fitted(dpjax.methods.dp_sgd())
    with pytest.raises(TypeError, match=r"sampling = 24: expected one of dpjax\.sampling"):
        dpjax.fit(loss, PARAMS, DATA, METHODS["dp_sgd"], B, optax.sgd(0.1), 1, KEY)
    with pytest.raises(ValueError, match="steps = 0: expected"):
        fitted(METHODS["dp_sgd"], steps=0)


def with_arguments(**changed):
    """Calls `fit` for one step, with some of its arguments changed."""
    given = {
        "loss_fn": loss,
        "params": PARAMS,
        "data": DATA,
        "mechanism": METHODS["dp_sgd"],
        "sampling": SAMPLING,
        "optimizer": optax.adam(0.1),
        "steps": 1,
        "key": KEY,
    }
    return dpjax.fit(**(given | changed))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"data": {}}, ValueError, "data has no leaves: expected arrays with a leading batch axis"),
        ({"optimizer": 0.1}, TypeError, r"optimizer = 0\.1: expected .* optax\.adam\(1e-3\)"),
        (
            {"optimizer": optax.chain(dpjax.privatize(METHODS["dp_sgd"], 24, KEY), optax.sgd(0.1))},
            ValueError,
            r"optimizer contains dpjax\.privatize: expected .* that follows it",
        ),
    ],
)
def test_arguments_that_do_not_fit(changed, error, message):
    with pytest.raises(error, match=f"^{message}") as raised:
        with_arguments(**changed)
    assert "\n" not in raised.value.args[0]


def test_a_state_of_another_run_is_refused():
    state = fitted(METHODS["dp_sgd"], steps=1).state
    others = {
        "params": {"params": {"w": jnp.zeros(5), "c": jnp.zeros(())}},
        "opt_state": {"optimizer": optax.sgd(0.1)},
        "opt_state ": {"mechanism": METHODS["dc_sgd_e"]},
        "opt_state  ": {"optimizer": optax.sgd(0.1, momentum=0.9)},
    }
    for field, changed in others.items():
        with pytest.raises(ValueError, match=rf"^state\.{field.strip()} .*: expected .*") as raised:
            with_arguments(state=state, **changed)
        assert "\n" not in raised.value.args[0]


def test_it_runs_outside_of_jit():
    with pytest.raises(TypeError, match=r"^fit was called inside of a JAX transformation"):
        jax.jit(lambda data: with_arguments(data=data).params)(DATA)


def test_rows_of_numpy_and_of_jax():
    mixed = {"x": np.asarray(DATA["x"]), "y": DATA["y"]}
    chex.assert_trees_all_equal(with_arguments(data=mixed).params, with_arguments().params)
