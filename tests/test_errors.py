"""Bad input gives one clear sentence, at construction: the field, its value, what was expected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import Mechanism, methods, rules, schedules, thresholds
from dpjax.adaclip import adaclip
from dpjax.momentum import inner_outer, stored
from dpjax.papers.auto_dp_sgd import auto_dp_sgd, auto_dp_sgd_as_printed

nan, inf = float("nan"), float("inf")
abadi = rules.abadi()
key = jax.random.key(0)

BAD_VALUES = [
    (lambda: Mechanism(abadi, 1.0, -1.0), "noise_multiplier = -1.0: expected"),
    (lambda: Mechanism(abadi, 1.0, nan), "noise_multiplier = nan: expected"),
    (lambda: Mechanism(abadi, 1.0, inf), "noise_multiplier = inf: expected"),
    (lambda: Mechanism(abadi, 0.0, 1.0), "threshold = 0.0: expected"),
    (lambda: Mechanism(abadi, nan, 1.0), "threshold = nan: expected"),
    (lambda: Mechanism(abadi, (1.0, -2.0), 1.0, "per_leaf"), r"threshold\[1\] = -2.0: expected"),
    (lambda: Mechanism(abadi, (1.0, 2.0), 1.0), "expected one number without groups"),
    (lambda: Mechanism(abadi, (1.0,), 1.0, {"a": "x", "b": "y"}), "expected 2 values"),
    (lambda: Mechanism(abadi, 1.0, 1.0, "per_layer"), "groups = 'per_layer': expected"),
    (lambda: rules.psasc(s=0.0), r"s = 0.0: expected a number in \(0, 1\]"),
    (lambda: rules.psasc(s=1.5), "s = 1.5: expected"),
    (lambda: rules.psasc(s=nan), "s = nan: expected"),
    (lambda: rules.psasc(r=-1.0), "r = -1.0: expected"),
    (lambda: rules.psac(r=0.0), "r = 0.0: expected"),
    (lambda: rules.nsgd(r=0.0), "r = 0.0: expected"),
    (lambda: rules.auto_s(gamma=nan), "gamma = nan: expected"),
    (lambda: rules.global_clip(z=0.0), "z = 0.0: expected"),
    (lambda: rules.global_adapt(scale=-1.0), "scale = -1.0: expected"),
    (lambda: auto_dp_sgd_as_printed(1.0, scale=2.0), "scale = 2.0: expected"),
    (lambda: thresholds.dc_sgd_p(p=0.5, bins=1), "bins = 1: expected an integer >= 2"),
    (lambda: thresholds.dc_sgd_p(p=1.0), "p = 1.0: expected"),
    (lambda: thresholds.dc_sgd_e(bins=0), "bins = 0: expected"),
    (lambda: thresholds.dc_sgd_e(sigma_h=nan), "sigma_h = nan: expected"),
    (lambda: thresholds.dc_sgd_e(negative="nonnegative"), "did you mean 'nonneg'"),
    (lambda: thresholds.quantile(target=1.5), "target = 1.5: expected"),
    (lambda: thresholds.quantile(0.5, floor=2.0, ceiling=1.0), "floor = 2.0: expected less than"),
    (lambda: thresholds.private_mean(alpha=0.5, kappa=2.0), "expected > 1"),
    (lambda: thresholds.global_z(eta=0.0), "eta = 0.0: expected"),
    (lambda: schedules.yu_linear(1.0, steps=0), "steps = 0: expected"),
    (lambda: schedules.du_decay(1.0, rho=1.2, steps=3), "rho = 1.2: expected"),
    (lambda: schedules.table(values=()), "expected at least one number"),
    (lambda: schedules.table(values=(1.0, nan)), r"values\[1\] = nan: expected"),
    (lambda: schedules.scaled(schedules.yu_linear(1.0, 3), 0.0), "factor = 0.0: expected"),
    (lambda: methods.du(1.0, steps=5, rho_mu=0.5), "rho_mu = 0.5: expected"),
    (lambda: auto_dp_sgd(1.0, steps_per_epoch=10, epochs=5, decay="stp"), "did you mean 'step'"),
    (lambda: methods.auto_dp_sgd_sound(1.0, steps_per_epoch=10, epochs=0), "epochs = 0: expected"),
    (lambda: methods.psasc_momentum(1.0, gamma1=0.0), "gamma1 = 0.0: expected"),
    (lambda: inner_outer(gamma0=0.5, length=0), "length = 0: expected"),
    (lambda: stored(gamma=0.0, dataset_size=3), "gamma = 0.0: expected"),
    (lambda: adaclip(h_floor=1e-2, h_ceiling=1e-4), "h_floor = 0.01: expected less than"),
    (lambda: dpjax.privatize(Mechanism(abadi, 1.0, 1.0), 0, key), "sampling = 0"),
    (lambda: dpjax.privatize(Mechanism(abadi, 1.0, 1.0), nan, key), "sampling = nan"),
    (lambda: dpjax.per_example_grads(lambda p, x: p, engine="vmp"), "did you mean 'vmap'"),
    (lambda: dpjax.per_example_grads(lambda p, x: p, chunk=0), "chunk = 0: expected"),
]
BAD_TYPES = [
    (lambda: Mechanism("abadi", 1.0, 1.0), "rule = 'abadi': expected a rule"),
    (lambda: Mechanism(abadi, "big", 1.0), "threshold = 'big': expected a real number"),
    (lambda: Mechanism(abadi, True, 1.0), "threshold = True: expected a real number"),
    (lambda: Mechanism(abadi, abadi, 1.0), "expected a number or a schedule, got a rule"),
    (lambda: Mechanism(abadi, 1.0, thresholds.dc_sgd_e()), "got a threshold"),
    (lambda: thresholds.dc_sgd_e(bins=2.5), "bins = 2.5: expected an integer"),
    (lambda: dpjax.privatize(abadi, 8, key), "expected a dpjax.Mechanism"),
    (lambda: Mechanism(abadi, 1.0, momentum=0.9), "momentum = 0.9: expected"),
    (lambda: Mechanism(abadi, 1.0, preconditioner=0.9), "preconditioner = 0.9: expected"),
    (lambda: Mechanism(abadi, 1.0, noise=1.0), "noise = 1.0: expected"),
]


@pytest.mark.parametrize(("make", "message"), BAD_VALUES)
def test_bad_value(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("make", "message"), BAD_TYPES)
def test_bad_type(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_split_that_cannot_work_is_refused_where_it_is_known():
    """At construction if sigma_S is known, in privatize if it follows the batch size."""
    with pytest.raises(ValueError, match="sigma_S = 5 of dc_sgd_e: expected at most"):
        Mechanism(abadi, thresholds.dc_sgd_e(sigma_h=5.0), 5.0)
    with pytest.raises(ValueError, match=r"noise_multiplier = 4\.5 against sigma_S = 5"):
        Mechanism(abadi, thresholds.dc_sgd_e(sigma_h=5.0), 4.5)  # sigma_T would be 2.3 sigma
    with pytest.raises(ValueError, match="sigma_S = 12"):
        Mechanism(abadi, thresholds.dc_sgd_p(p=0.5), schedules.table((1.0, 11.0)))
    with pytest.raises(ValueError, match="sigma_S = 12"):
        Mechanism(abadi, thresholds.dc_sgd_p(p=0.5), lambda t: 11.0)
    by_batch = Mechanism(abadi, thresholds.quantile(0.5), 2.0)
    assert by_batch.sigma_statistic(256) == pytest.approx(25.6)
    with pytest.raises(ValueError, match=r"sigma_S = 1\.6"):
        dpjax.privatize(by_batch, 16, key)
    with pytest.raises(ValueError, match="expected_batch_size = None"):
        by_batch.sigma_gradient(0)


def test_the_split_is_derived_from_the_total():
    mechanism = Mechanism(abadi, thresholds.dc_sgd_e(sigma_h=5.0), 3.0)
    assert float(mechanism.sigma_gradient(0)) == pytest.approx((3**-2 - 5**-2) ** -0.5, rel=1e-6)
    decaying = Mechanism(abadi, thresholds.dc_sgd_e(), schedules.table((2.5, 1.0)))
    assert decaying.sigma_statistic() == 8.0  # resolved once, from the largest sigma
    assert float(decaying.sigma_gradient(1)) == pytest.approx((1 - 8**-2) ** -0.5, rel=1e-6)


def test_what_is_not_private_says_so():
    printed = auto_dp_sgd(1.0, steps_per_epoch=10, epochs=5)
    assert not printed.guarantee.private
    assert "auto_dp_sgd_sound" in printed.guarantee.statement
    with pytest.raises(TypeError, match=r"expected a dpjax\.Mechanism"):
        dpjax.privatize(printed, 8, key)
    silent = Mechanism(abadi, 1.0, 0.0)
    assert not silent.guarantee.private
    assert "noise_multiplier is 0" in silent.guarantee.statement


def test_groups_that_do_not_fit_the_parameters():
    params = {"body": jnp.zeros(2), "head": jnp.zeros(3)}

    def start(groups, threshold=1.0):
        dpjax.privatize(Mechanism(abadi, threshold, 1.0, groups), 8, key).init(params)

    with pytest.raises(ValueError, match="'head' has no label: expected one"):
        start({"body": "a"})
    with pytest.raises(ValueError, match="no parameter lies under 'tail'"):
        start({"body": "a", "head": "b", "tail": "b"})
    with pytest.raises(TypeError, match="expected a label"):
        start({"body": 1.5, "head": "b"})
    with pytest.raises(ValueError, match="threshold has 3 values: expected one for each of the 2"):
        start("per_leaf", (1.0, 1.0, 1.0))


def test_gradients_that_were_averaged_already():
    params = {"w": jnp.zeros((8, 3))}
    tx = dpjax.privatize(Mechanism(abadi, 1.0, 1.0), 8, key)
    with pytest.raises(ValueError, match="expected one gradient per example"):
        tx.update({"w": jnp.zeros((8, 3))}, tx.init(params), params)
    with pytest.raises(ValueError, match=r"mask has shape \(4,\): expected \(5,\)"):
        tx.update({"w": jnp.zeros((5, 8, 3))}, tx.init(params), params, mask=jnp.ones(4))


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_numpy_scalars_become_python_numbers(number):
    mechanism = Mechanism(abadi, number, number)
    assert type(mechanism.threshold) is float
    assert type(mechanism.noise_multiplier) is float
