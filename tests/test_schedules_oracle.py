"""Every schedule against the float64 oracle; epochs against exact integers; strict plain forms."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import Mechanism, methods, rules, schedules
from dpjax.schedules import Schedule
from tests.oracles import schedules as oracle
from tests.registry import SCHEDULES

FLOAT32 = 2e-6
STEPS = np.array([*range(120), 149, 150, 151, 199, 200, 374, 375, 999, 1000])

# steps_per_epoch = 12.5 is N / B = 25 / 2 in exact integers; 7 is 7 / 1.
ORACLES: dict[str, Callable[[int], float]] = {
    "yu_linear": lambda t: oracle.yu_linear(t, 2.0, 100),
    "du_decay": lambda t: oracle.du_decay(t, 2.0, 0.3, 100),
    "power_decay": lambda t: oracle.power_decay(t, 2.0, 0.5, 2, 25),
    "table": lambda t: oracle.table(t, (1.0, 0.7, 0.9), 1, 7),
    "scaled": lambda t: 0.5 * oracle.yu_linear(t, 2.0, 100),
    "geometric": lambda t: oracle.geometric(t, 1.5, 0.99, 2, 25),
    "time_decay": lambda t: oracle.time_decay(t, 1.5, 0.3, 2, 25),
    "step_decay": lambda t: oracle.step_decay(t, 1.5, 0.5, 2, 2, 25),
    "exponential_decay": lambda t: oracle.exponential_decay(t, 1.5, 0.1, 2, 25),
}

SETTINGS = (
    (60000, 256), (50000, 256), (60000, 1024), (60000, 64),
    (9464, 256), (60000, 600), (20074, 64), (60000, 7),
)  # fmt: skip
EPOCHS = 20
LONGEST = -(-EPOCHS * 60000 // 7)
VALUES = tuple(
    float(v) for v in np.random.default_rng(0).permutation(np.linspace(0.5, 2.0, EPOCHS))
)

# Per epoch: the library's curve from N / B, and the oracle's from the integers (t, B, N).
PER_EPOCH: dict[str, tuple[Callable[[float], Schedule], Callable[[int, int, int], float]]] = {
    "power_decay": (
        lambda per: schedules.power_decay(2.0, per, 0.5),
        lambda t, b, n: oracle.power_decay(t, 2.0, 0.5, b, n),
    ),
    "table": (
        lambda per: schedules.table(VALUES, per),
        lambda t, b, n: oracle.table(t, VALUES, b, n),
    ),
    "geometric": (
        lambda per: schedules.geometric(1.5, per, 0.9),
        lambda t, b, n: oracle.geometric(t, 1.5, 0.9, b, n),
    ),
    "time_decay": (
        lambda per: schedules.time_decay(1.5, per, 0.3),
        lambda t, b, n: oracle.time_decay(t, 1.5, 0.3, b, n),
    ),
    "step_decay": (
        lambda per: schedules.step_decay(1.5, per, 0.5, 3),
        lambda t, b, n: oracle.step_decay(t, 1.5, 0.5, 3, b, n),
    ),
    "exponential_decay": (
        lambda per: schedules.exponential_decay(1.5, per, 0.1),
        lambda t, b, n: oracle.exponential_decay(t, 1.5, 0.1, b, n),
    ),
}


def test_every_registered_schedule_has_an_oracle() -> None:
    assert set(ORACLES) == set(SCHEDULES)
    assert set(PER_EPOCH) < set(SCHEDULES)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_follows_the_oracle(name: str, jit: bool) -> None:
    curve = SCHEDULES[name]
    call = jax.jit(curve.__call__) if jit else curve
    want = [ORACLES[name](int(t)) for t in STEPS]
    np.testing.assert_allclose(call(jnp.asarray(STEPS)), want, FLOAT32)
    for t in (0, 13, 100):
        assert float(call(t)) == pytest.approx(ORACLES[name](t), rel=FLOAT32)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}")
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_epochs_are_exact_at_all_steps_of_the_papers(setting: tuple[int, int], jit: bool) -> None:
    n, b = setting
    last = -(-EPOCHS * n // b)
    assert last <= LONGEST
    steps = np.minimum(np.arange(LONGEST + 1), last)  # one shape for all settings: compiled once
    exact = steps * b // n
    firsts = -(-np.arange(exact[-1] + 1) * n // b)  # the first step of each epoch
    assert [oracle.epoch(int(t), b, n) for t in firsts] == list(range(exact[-1] + 1))
    curves = [build(n / b) for build, _ in PER_EPOCH.values()]

    def read(t: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        return schedules.epoch_of(t, n / b), [curve(t) for curve in curves]

    epochs, values = (jax.jit(read) if jit else read)(jnp.asarray(steps))
    np.testing.assert_array_equal(epochs, exact)
    for got, (name, (_, truth)) in zip(values, PER_EPOCH.items(), strict=True):
        want = np.array([truth(int(t), b, n) for t in firsts])[exact]
        np.testing.assert_allclose(got, want, FLOAT32, err_msg=name)


def test_hundred_epochs_of_auto_dp_sgd_are_exact() -> None:
    steps = np.arange(100 * 60000 // 64 + 1)
    got = schedules.epoch_of(jnp.asarray(steps), 60000 / 64)
    np.testing.assert_array_equal(got, steps * 64 // 60000)


@pytest.mark.parametrize("every", [1, 3, 7, 10, 49, 41, 47, 55, 61])
def test_step_decay_drops_at_whole_multiples(every: int) -> None:
    epochs = np.arange(6 * 61)
    got = schedules.step_decay(1.0, 1.0, rate=0.81, every=every)(jnp.asarray(epochs))
    np.testing.assert_allclose(got, 0.9 ** (epochs // every), 1e-5)


def test_values_are_held_beyond_the_end() -> None:
    beyond = jnp.array([100, 101, 10**6, 2**31 - 1])
    np.testing.assert_allclose(SCHEDULES["yu_linear"](beyond), 1.0, FLOAT32)
    np.testing.assert_allclose(SCHEDULES["du_decay"](beyond), 0.6, FLOAT32)
    np.testing.assert_allclose(SCHEDULES["table"](beyond), 0.9, FLOAT32)
    np.testing.assert_allclose(SCHEDULES["scaled"](beyond), 0.5, FLOAT32)


@pytest.mark.parametrize("rho_mu", [1.0, 1.7, 4.0])
def test_du_noise_falls_as_its_inverse_grows(rho_mu: float) -> None:
    sigma = methods.du(1.3, steps=40, rho_mu=rho_mu).noise_multiplier
    steps = np.arange(60)
    want = [oracle.du_noise(int(t), 1.3, rho_mu, 40) for t in steps]
    np.testing.assert_allclose(sigma(jnp.asarray(steps)), want, FLOAT32)


def test_table_from_callable_is_the_optax_schedule() -> None:
    curve = optax.warmup_cosine_decay_schedule(0.5, 2.0, 5, 30, end_value=0.25)
    tabulated = schedules.table.from_callable(curve, steps=31)
    np.testing.assert_allclose(
        tabulated(jnp.arange(31)), [float(curve(t)) for t in range(31)], FLOAT32
    )
    assert float(tabulated(1000)) == pytest.approx(0.25, rel=FLOAT32)
    assert Schedule.from_plain(json.loads(json.dumps(tabulated.to_plain()))) == tabulated


@pytest.mark.parametrize("name", SCHEDULES)
def test_largest_is_the_oracles_largest(name: str) -> None:
    want = max(ORACLES[name](int(t)) for t in STEPS)
    assert schedules.largest(SCHEDULES[name]) == pytest.approx(want, rel=1e-7)


def test_largest_of_numbers_tables_and_bare_callables() -> None:
    assert schedules.largest(0.7) == 0.7
    rising = schedules.table(values=(0.5, 2.0, 1.0), steps_per_epoch=1000)
    assert schedules.largest(rising) == 2.0
    assert schedules.largest(schedules.scaled(rising, 3.0)) == 6.0
    assert schedules.largest(optax.linear_schedule(0.5, 2.0, 100)) == pytest.approx(2.0)


def test_a_bare_optax_schedule_runs_as_threshold_and_as_noise() -> None:
    c, sigma = optax.linear_schedule(2.0, 0.5, 4), optax.exponential_decay(1.5, 2, 0.5)
    mechanism = Mechanism(rules.abadi(), c, sigma)
    tx = dpjax.privatize(mechanism, 2, jax.random.key(0))
    params = jnp.zeros(2)
    state, update = tx.init(params), jax.jit(tx.update)
    for t in range(6):
        _, state = update(jnp.ones((2, 2)), state, params)
        assert float(state.released.threshold) == pytest.approx(float(c(t)), rel=FLOAT32)
        assert float(state.released.sigma) == pytest.approx(float(sigma(t)), rel=FLOAT32)


@pytest.mark.parametrize("field", ["threshold", "noise_multiplier"])
def test_serialising_a_bare_callable_names_the_field_and_offers_a_table(field: str) -> None:
    bare = {field: optax.linear_schedule(2.0, 0.5, 4)}
    mechanism = Mechanism(rules.abadi(), **{"threshold": 1.0, "noise_multiplier": 1.0, **bare})
    with pytest.raises(TypeError, match=rf"^{field} = .*table\.from_callable\({field}, steps\)"):
        mechanism.to_plain()
    fixed = mechanism.replace(**{field: schedules.table.from_callable(bare[field], 5)})
    assert Mechanism.from_plain(fixed.to_plain()) == fixed


def test_serialising_a_bare_callable_in_a_tuple_names_its_place() -> None:
    mechanism = Mechanism(rules.abadi(), (1.0, optax.constant_schedule(2.0)), 1.0, "per_leaf")
    with pytest.raises(TypeError, match=r"^threshold\[1\] = "):
        mechanism.to_plain()


@pytest.mark.parametrize("name", SCHEDULES)
def test_plain_form_survives_json(name: str) -> None:
    assert (
        Schedule.from_plain(json.loads(json.dumps(SCHEDULES[name].to_plain()))) == SCHEDULES[name]
    )


GOOD = {"kind": "geometric", "init": 1.0, "steps_per_epoch": 10.0, "rate": 0.5}


@pytest.mark.parametrize(
    ("plain", "error", "message"),
    [
        (GOOD | {"rte": 0.5}, ValueError, r"\.rte: unknown; did you mean 'rate'\?"),
        (GOOD | {"kind": "geometrik"}, ValueError, r"kind = 'geometrik': did you mean 'geometric'"),
        (GOOD | {"kind": 3}, ValueError, "expected a 'kind'"),
        ({"init": 1.0}, ValueError, "expected a 'kind'"),
        ({"kind": "geometric", "init": 1.0}, ValueError, r"\.steps_per_epoch: missing"),
        (GOOD | {"init": "1.0"}, TypeError, "init = '1.0': expected a real number"),
        (GOOD | {"init": True}, TypeError, "init = True: expected a real number"),
        (GOOD | {"init": None}, TypeError, r"init = None: expected"),
        (GOOD | {"init": [1.0]}, TypeError, r"init = \(1.0,\): expected a real number"),
        (GOOD | {"rate": 1.5}, ValueError, r"rate = 1.5: expected a number in \(0, 1\]"),
        (GOOD | {"init": float("nan")}, ValueError, "init = nan: expected a finite number > 0"),
        ({"kind": "yu_linear", "init": 1.0, "steps": 10.5}, TypeError, "steps = 10.5: expected an"),
        ({"kind": "table", "values": []}, ValueError, "expected at least one number"),
        ({"kind": "scaled", "schedule": 1.0, "factor": 2.0}, TypeError, "expected a schedule"),
        ({"kind": "abadi"}, TypeError, "expected the plain form of a schedule"),
        (1.0, TypeError, "expected the plain form of a schedule"),
    ],
)
def test_plain_forms_are_read_strictly(plain: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Schedule.from_plain(plain)


def test_a_bad_plain_form_is_named_by_its_path() -> None:
    plain = Mechanism(rules.abadi(), SCHEDULES["geometric"], 1.0).to_plain()
    plain["threshold"]["steps_per_epoc"] = plain["threshold"].pop("steps_per_epoch")
    with pytest.raises(ValueError, match=r"threshold\.steps_per_epoc: unknown; did you mean"):
        Mechanism.from_plain(plain)
