"""Any norm, any threshold, any step, any argument: a weight within its bound, or a refusal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import rules, schedules, thresholds
from dpjax._record import Record
from dpjax.testing import SLACK
from dpjax.thresholds import ThresholdContext
from dpjax.thresholds.threshold import CEILING, FLOOR
from tests import registry
from tests.endurance.counting import count, examples
from tests.endurance.junk import anything, built, changed, defaults, float32s, norms

LAST_STEP = 2**31 - 1
ROWS = 16

RULES = [rules.auto_s, rules.nsgd, rules.psac, rules.psasc, rules.global_clip, rules.global_adapt]
NEEDED = {
    "z": 3.0,
    "init": 2.0,
    "steps": 100,
    "rho": 0.3,
    "steps_per_epoch": 12.5,
    "rate": 0.3,
    "values": (1.0, 0.7),
    "schedule": schedules.yu_linear(2.0, 100),
    "factor": 0.5,
    "target": 0.5,
    "p": 0.5,
}
SCHEDULES = [type(schedule) for schedule in registry.SCHEDULES.values()]
THRESHOLDS = [getattr(thresholds, n) for n in thresholds.__all__ if n[0].islower()]


def survives_plain_data(record):
    assert type(record).from_plain(record.to_plain()) == record
    assert Record.from_plain(record.to_plain()) == record


def check_weights(rule, shown, c):
    """The contract of `Rule.weight`, for whatever norms and a threshold that `Mechanism` takes."""
    with np.errstate(all="ignore"):
        bound = float(rule.bound(c))
        weights = np.asarray(rule.weight(jnp.asarray(shown, jnp.float32), jnp.float32(c)))
        lengths = weights.astype(np.float64) * np.where(np.isfinite(shown), shown, 0.0)
    assert np.all(np.isfinite(weights)), (rule, c)
    assert np.all(weights >= 0)
    assert np.all(weights[~np.isfinite(shown)] == 0)
    assert np.all(lengths <= bound * (1 + SLACK)), (rule, c, shown[np.argmax(lengths)])


@examples(150)
@given(data=st.data(), rule=st.sampled_from(list(registry.RULES.values())))
def test_weights_of_rules(data, rule):
    count("input", "rule.weight")
    shown = np.asarray(data.draw(st.lists(norms, min_size=ROWS, max_size=ROWS)), np.float32)
    check_weights(rule, shown, data.draw(st.floats(1e-25, 1e25)))


@examples(250)
@given(data=st.data(), make=st.sampled_from(RULES))
def test_rules_of_any_arguments(data, make):
    count("input", "dpjax.rules")
    arguments = data.draw(changed(defaults(make, **NEEDED)))
    rule = built(make, arguments, set(arguments))
    if rule is None:
        return
    survives_plain_data(rule)
    shown = np.asarray(data.draw(st.lists(norms, min_size=ROWS, max_size=ROWS)), np.float32)
    check_weights(rule, shown, data.draw(st.floats(1e-25, 1e25)))


@examples(300)
@given(data=st.data(), make=st.sampled_from(SCHEDULES))
def test_schedules_of_any_arguments(data, make):
    count("input", "dpjax.schedules")
    arguments = data.draw(changed(defaults(make, **NEEDED)))
    schedule = built(make, arguments, set(arguments))
    if schedule is None:
        return
    if all(not callable(v) or isinstance(v, Record) for v in arguments.values()):
        survives_plain_data(schedule)
    steps = np.asarray(
        [
            0,
            1,
            2,
            *data.draw(st.lists(st.integers(0, LAST_STEP), min_size=3, max_size=3)),
            2**24 + 1,
            LAST_STEP,
        ],
        np.int32,
    )
    values = np.asarray(schedule(jnp.asarray(steps)), np.float64)
    top = schedule.largest()
    assert np.isfinite(top), schedule
    assert np.all(np.isfinite(values)), (schedule, values)
    assert values[0] > 0, schedule
    assert np.all(values >= 0), schedule
    assert np.all(values <= top * (1 + 1e-6)), (schedule, values, top)


@examples(200)
@given(value=anything, zero=st.booleans())
def test_numbers_or_schedules(value, zero):
    count("input", "schedules.number_or_schedule")
    number = built(
        lambda field: schedules.number_or_schedule(field, value, zero=zero),
        {"field": "threshold"},
        {"threshold"},
    )
    if number is not None:
        assert callable(number) or (np.isfinite(number) and (number > 0 or (zero and number == 0)))


def limits(threshold):
    return getattr(threshold, "floor", FLOOR), getattr(threshold, "ceiling", CEILING)


@examples(150)
@given(data=st.data(), make=st.sampled_from(THRESHOLDS))
def test_thresholds_of_any_arguments(data, make):
    """Whatever is built starts and stays finite and positive, within its limits once it moved."""
    count("input", "dpjax.thresholds")
    arguments = data.draw(changed(defaults(make, **NEEDED)))
    threshold = built(make, arguments, set(arguments))
    if threshold is None:
        return
    survives_plain_data(threshold)
    assert threshold == thresholds.Threshold.from_plain(threshold.to_plain())
    low, high = limits(threshold)
    state = threshold.init()
    for leaf in state:
        assert np.isfinite(leaf), threshold
        assert leaf > 0, threshold
    bins = getattr(threshold, "bins", 1)
    if bins > 64:
        return  # each number of bins is another program to compile
    sigma_s = threshold.sigma_statistic(1.0, 256.0)
    if sigma_s is None or not np.isfinite(np.float32(sigma_s)):
        return
    shown = jnp.asarray(data.draw(st.lists(norms, min_size=4, max_size=4)), jnp.float32)
    statistic = np.asarray(threshold.statistic(shown, state), np.float64)
    assert np.all(np.linalg.norm(statistic, axis=1) <= threshold.sensitivity * (1 + SLACK))
    context = ThresholdContext(256.0, 1000, jnp.float32(1.0), sigma_s)
    noisy = data.draw(st.lists(float32s, min_size=bins, max_size=bins))
    moved = threshold.update(state, jnp.asarray(noisy, jnp.float32), context)
    for leaf in moved:
        assert np.isfinite(leaf), (threshold, noisy)
        assert leaf > 0, (threshold, noisy)
    stays = float(moved.threshold) == float(state.threshold)
    assert stays or low * (1 - 1e-6) <= float(moved.threshold) <= high * (1 + 1e-6)


@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_updates_from_any_noisy_sum(name):
    """The thresholds of the registry, jitted: many more noisy sums than above."""
    threshold = registry.THRESHOLDS[name]
    width = threshold.statistic(jnp.ones(1), threshold.init()).shape[1]
    context = ThresholdContext(256.0, 1000, jnp.float32(1.0), threshold.sigma_statistic(1.0, 256.0))
    update = jax.jit(lambda state, noisy: threshold.update(state, noisy, context))

    @examples(60)
    @given(
        noisy=st.lists(st.lists(float32s, min_size=width, max_size=width), min_size=1, max_size=5)
    )
    def updates(noisy):
        state = threshold.init()
        for row in noisy:
            count("input", "threshold.update")
            state = update(state, jnp.asarray(row, jnp.float32))
            for leaf in state:
                assert np.isfinite(leaf)
                assert FLOOR * (1 - 1e-6) <= float(leaf) <= 2 * CEILING * (1 + 1e-6)

    updates()
