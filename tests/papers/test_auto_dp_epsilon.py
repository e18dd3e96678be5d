"""Auto DP-SGD's printed epsilons: the paper's own numbers, which guarantee nothing."""

import math

import pytest

from dpjax import accounting, methods
from dpjax.accounting import epsilon, event
from dpjax.accounting.rdp import rdp_epsilon
from dpjax.papers import auto_dp_epsilon
from dpjax.papers.auto_dp_epsilon import auto_dp_sgd_claim, auto_dp_sgd_epsilon_as_printed
from dpjax.papers.auto_dp_sgd import auto_dp_sgd
from dpjax.sampling import Poisson

DELTA = 1e-5


@pytest.mark.parametrize(
    ("decay", "printed"),
    [("linear", 0.2429), ("time", 0.2268), ("step", 0.1874), ("exponential", 9.9943)],
)
def test_the_papers_appendix_d(decay, printed):
    got = auto_dp_sgd_epsilon_as_printed(decay, 1.0, 60_000, 64, 100)
    assert got.epsilon == pytest.approx(printed, abs=5e-5)
    assert type(got) is auto_dp_epsilon.AsPrinted


def test_as_printed_says_so():
    """It is no `Bound`, and neither its name nor its docstring promises anything."""
    function = auto_dp_sgd_epsilon_as_printed
    assert function.__name__.endswith("_as_printed")
    assert "None of them is a guarantee" in auto_dp_epsilon.__doc__
    assert "for reproduction only" in function.__doc__
    assert "Privacy:\n        None. The mechanism has no bound" in function.__doc__
    assert "auto_dp_sgd_sound" in function.__doc__
    assert "no guarantee" in auto_dp_epsilon.AsPrinted.__doc__
    got = function("linear", 1.0, 60_000, 64, 100)
    assert not isinstance(got, accounting.Bound)
    assert not isinstance(got, float)


def test_the_printed_figure_is_far_below_the_cost():
    """MECHANISMS 6: its step rows of about .5 cost thousands with a true bound."""
    printed = auto_dp_sgd_epsilon_as_printed("step", 1.0, 60_000, 64, 100).epsilon
    sound = methods.auto_dp_sgd_sound(1.0, steps_per_epoch=937.5, epochs=100, decay="step")
    happened = event(sound, Poisson.with_rate(64 / 60_000), 93_750)
    assert rdp_epsilon(happened, happened.neighboring_relation, DELTA) > 1_000 * printed
    # Its last noise multipliers, near .001, have no epsilon: the noise does not reach far enough.
    with pytest.raises(ValueError, match=r"ends at 11\.6 standard deviations"):
        epsilon(sound, Poisson.with_rate(64 / 60_000), 93_750, DELTA, "rdp")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("sigma_0", 0.0),
        ("sigma_0", math.nan),
        ("dataset_size", 0),
        ("batch_size", 1.5),
        ("epochs", 0),
        ("delta", 1.0),
        ("threshold", -1.0),
        ("rate", math.inf),
        ("decay", "cosine"),
    ],
)
def test_as_printed_checks_what_it_is_given(field, bad):
    args = {
        "decay": "linear",
        "sigma_0": 1.0,
        "dataset_size": 60_000,
        "batch_size": 64,
        "epochs": 100,
    }
    with pytest.raises((ValueError, TypeError), match=f"{field} = "):
        auto_dp_sgd_epsilon_as_printed(**{**args, field: bad})


@pytest.mark.parametrize("decay", ["linear", "time", "step", "exponential"])
def test_the_claim_is_the_formula_at_the_methods_own_numbers(decay):
    """Ten epochs of 64 steps; step's decay comes every ten epochs, as in the paper."""
    method = auto_dp_sgd(2.0, steps_per_epoch=64, epochs=10, decay=decay)
    got = auto_dp_sgd_claim(method, rate=1 / 64, steps=640, delta=DELTA)
    wanted = auto_dp_sgd_epsilon_as_printed(decay, 2.0, 64_000, 1_000, 10, DELTA).epsilon
    assert got == pytest.approx(wanted, rel=1e-6)


def test_a_method_with_other_noise_has_no_printed_epsilon():
    with pytest.raises(ValueError, match=r"noise_multiplier = 1\.0: expected one of Auto DP-SGD's"):
        auto_dp_sgd_claim(methods.dp_sgd(1.0), rate=0.1, steps=10, delta=DELTA)
