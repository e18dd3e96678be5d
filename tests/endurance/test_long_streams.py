"""100,000 steps of each adaptive threshold under hostile norms: C stays in its limits, and returns.

The streams are in `tests.endurance.streams`. What is stated of the recovery holds for the float64
oracle without noise too, from both limits.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import rules
from dpjax.thresholds import ThresholdContext, private_mean, quantile
from dpjax.thresholds.scalar import ScalarState
from dpjax.thresholds.threshold import CEILING, FLOOR
from tests import registry
from tests.endurance import streams
from tests.endurance.counting import count

STEPS, AFTER = 100_000, 300

# Sane batches after which C is back, from anywhere. The bits move C by a tenth of its logarithm
# per step, and ln(1e8) = 18.4 lies between a limit and 1; the others double, or halve, at least.
RECOVERY = {name: 230 if name in ("quantile", "global_z") else 60 for name in registry.THRESHOLDS}


@pytest.fixture(scope="module")
def hostile():
    return streams.hostile_streams(STEPS)


def outside(path, low=FLOOR, high=CEILING):
    """Says at how many steps of each stream C is not finite, or not in its limits."""
    path = np.asarray(path, np.float64)
    inside = np.isfinite(path) & (path >= low * (1 - 1e-6)) & (path <= high * (1 + 1e-6))
    return np.sum(~inside, axis=0)


@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_stays_in_its_limits_and_recovers(name, hostile):
    paths = streams.run(registry.THRESHOLDS[name], np.stack(list(hostile.values())), AFTER)
    for stream, path in zip(hostile, paths.hostile.T, strict=True):
        assert path.shape == (STEPS,)
        count("step", f"{name} under {stream}", path.size)
        count("example", f"{name} under {stream}", path.size * streams.B)
    assert not outside(paths.hostile).any(), dict(zip(hostile, outside(paths.hostile), strict=True))
    assert not outside(paths.rest, FLOOR, 2 * CEILING).any()  # DC-SGD-P's range is 2 C
    # The oracle without noise, from both limits: it may stop at more than one place.
    ends = [streams.oracle_path(name, c, 2 * c, AFTER) for c in (FLOOR, 5.0, CEILING)]
    fixed = [np.exp(np.mean(np.log(end[-100:]))) for end in ends]
    low, high = min(fixed) / 1.25, max(fixed) * 1.25
    for end in ends:
        assert np.argmax((end > low) & (end < high)) <= RECOVERY[name]
    for stream, path in zip(hostile, paths.recovery.T, strict=True):
        back = (path > low) & (path < high)
        assert back.any(), stream
        assert np.argmax(back) <= RECOVERY[name], stream
        assert low < np.exp(np.median(np.log(path[-50:]))) < high, stream


def test_the_streams_are_hostile(hostile):
    """C is driven to both of its limits, and non-finite norms are among the streams."""
    paths = streams.run(
        quantile(target=0.5), np.stack(list(hostile.values()))[:, :2000], recovery=1
    )
    ends = dict(zip(hostile, paths.hostile[-1], strict=True))
    assert ends["zero"] == np.float32(FLOOR)
    assert ends["huge"] == np.float32(CEILING)
    assert not np.isfinite(hostile["nan and inf"]).all()
    assert hostile["pareto"].max() > 1e30


def test_own_limits_hold(hostile):
    own = [quantile(target=0.5, floor=0.1, ceiling=3.0), private_mean(floor=0.1, ceiling=3.0)]
    arrays = np.stack(list(hostile.values()))[:, :2000]
    for threshold in own:
        path = streams.run(threshold, arrays, recovery=1).hostile
        assert not outside(path, 0.1, 3.0).any()
        assert path.min() == np.float32(0.1)


@dataclass(frozen=True)
class quantile_without_limits(quantile):
    """As printed by Andrew et al.: no floor, no ceiling."""

    def _moved(self, state, c):
        return ScalarState(c.astype(jnp.float32))


@dataclass(frozen=True)
class mean_that_trusts_its_noise(private_mean):
    """As if the noisy mean were a mean: negative ones make C negative."""

    def update(self, state, noisy_sum, context: ThresholdContext):
        mean = noisy_sum[0] / context.expected_batch_size
        return ScalarState(self.alpha * self.kappa * state.threshold * mean)


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (quantile_without_limits(target=0.5), {"zero", "huge", "subnormal"}),
        (mean_that_trusts_its_noise(), {"zero", "huge", "alternating", "nan and inf"}),
    ],
)
def test_a_threshold_without_limits_is_caught(broken, caught_by, hostile):
    arrays = np.stack(list(hostile.values()))[:, :2000]
    caught = outside(streams.run(broken, arrays, recovery=1).hostile) > 0
    assert caught_by <= {name for name, c in zip(hostile, caught, strict=True) if c}


def through_privatize(name, steps):
    """Takes steps of the whole transformation on rows whose norms are hostile, kind after kind."""
    size, sigma = 8, 0.3
    mechanism = dpjax.Mechanism(rules.abadi(), registry.THRESHOLDS[name], sigma)
    tx = dpjax.privatize(mechanism, size, jax.random.key(1))
    kinds = streams.hostile_streams(-(-steps // 7)).values()
    norms = np.concatenate(list(kinds))[:steps, :size]
    params = jnp.zeros(3)

    @jax.jit
    def run(norms):
        def step(state, row):
            update, state = tx.update(row[:, None] * jnp.array([0.6, 0.0, -0.8]), state, params)
            return state, (update, state.threshold.threshold, state.released.threshold)

        return jax.lax.scan(step, tx.init(params), norms)[1]

    updates, threshold, used = run(jnp.asarray(norms))
    count("step", f"{name} through privatize", steps)
    count("example", f"{name} through privatize", steps * size)
    assert np.all(np.isfinite(updates))
    assert not outside(threshold).any()
    # Eight examples of at most C each, and noise of sigma_T C beyond eight deviations of which
    # no draw of this many lies.
    longest = np.linalg.norm(np.asarray(updates, np.float64), axis=1) * size
    spread = float(mechanism.sigma_gradient(0, size)) * np.sqrt(3) * 8
    assert np.all(longest <= np.asarray(used, np.float64) * (size + spread))


@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_through_privatize(name):
    through_privatize(name, 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.THRESHOLDS)
def test_100_000_steps_through_privatize(name):
    through_privatize(name, STEPS)
