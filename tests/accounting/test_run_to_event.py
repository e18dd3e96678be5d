"""What runs is what is accounted: noise measured in the compiled step against the event's sigma."""

from dataclasses import dataclass
from typing import NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import noise, thresholds
from dpjax._states import find_state
from dpjax.accounting import event
from dpjax.adaclip import AdaClipState
from dpjax.momentum import InnerOuterState, inner_outer, stored
from dpjax.sampling import FullBatch, Poisson
from tests import registry
from tests.marks import some
from tests.stepping import at_step

# At this sigma and batch size the statistic has 14% to 63% of the budget, so that a wrong split of
# it is far more than the tolerance. The 120 steps go past the first drop of every decay.
SIGMA, B, STEPS = 1.9, 48.0, 120
STARTS = (0, STEPS // 2, STEPS - 2)  # the last step is STEPS - 1
PARAMS = {"a": jnp.zeros((3, 4)), "b": jnp.zeros(8)}
TOLERANCE = 0.02
SOUND = [name for name in registry.METHODS if name != "auto_dp_sgd"]


class HeardState(NamedTuple):
    inner: object
    noisy: jax.Array

    @property
    def threshold(self):
        return self.inner.threshold


@dataclass(frozen=True)
class heard(thresholds.Threshold):
    """Adapts like `inner` and keeps the noisy sum; `louder` breaks the statistic's noise."""

    inner: thresholds.Threshold
    louder: float = 1.0

    @property
    def sensitivity(self):
        return self.louder * self.inner.sensitivity

    def sigma_statistic(self, sigma, expected_batch_size):
        return self.inner.sigma_statistic(sigma, expected_batch_size)

    def init(self):
        state = self.inner.init()
        return HeardState(state, self.inner.statistic(jnp.ones(1), state)[0] * 0)

    def statistic(self, norms, state):
        # Less noise means a smaller sensitivity, which a mechanism holds the statistic to.
        return min(self.louder, 1.0) * self.inner.statistic(norms, state.inner)

    def update(self, state, noisy_sum, context):
        return HeardState(self.inner.update(state.inner, noisy_sum, context), noisy_sum)


def grouped(method):
    return method.replace(groups="per_leaf")


def overheard(method, louder=1.0):
    """The method with its statistic's noisy sum kept in the state."""
    mechanism = method
    if not mechanism.adaptive:
        return method
    return method.replace(threshold=heard(mechanism.threshold, louder))


def sampling_of(method):
    return FullBatch() if isinstance(method.momentum, stored) else Poisson.with_rate(0.01)


def accounted(happened):
    """The event's noise multiplier at every step."""
    sigmas = []
    for run in happened.events:
        inner = run.event
        if isinstance(inner, dp_accounting.PoissonSampledDpEvent):
            inner = inner.event
        sigmas += [inner.noise_multiplier] * run.count
    return sigmas


def nobody(method):
    """A batch whose sum is zero: nobody in it; zero gradients of everybody for stored momentum."""
    rows = getattr(method.momentum, "dataset_size", 2)
    mask = jnp.ones(rows) if isinstance(method.momentum, stored) else jnp.zeros(rows)
    return dpjax.per_example_grads(flat_loss, "vmap")(PARAMS, jnp.zeros(rows), mask=mask)


def flat_loss(params, x):
    """Has gradient zero everywhere."""
    return sum(jnp.sum(0 * leaf) for leaf in jax.tree.leaves(params)) + 0 * x


def own_noise(method, update, before):
    """The release in its own coordinates: without old momentum, standardised for AdaCliP."""
    if isinstance(method.momentum, inner_outer):
        old = find_state(before, InnerOuterState).outer
        return jax.tree.map(lambda u, m: u - (1 - method.momentum.gamma1) * m, update, old)
    if method.preconditioner is not None:
        moments = find_state(before, AdaClipState)
        std = jax.tree.map(jnp.sqrt, moments.variance)
        total = sum(jnp.sum(s) for s in jax.tree.leaves(std))
        return jax.tree.map(
            lambda u, m, s: (u - m) / jnp.sqrt(s * total), update, moments.mean, std
        )
    return update


def compiled_run(method):
    """Returns a jitted (keys, start) -> what two steps from `start` on release to each key.

    That is gradient * B / bound and the noisy statistic over its sensitivity, pure noise both. In
    the second step thresholds, moments and momentum are no longer the first ones.
    """
    mechanism = method
    groups = 1 if mechanism.groups is None else len(PARAMS)

    def run(key, start):
        tx = method.transformation(B, key)

        def step(state, _):
            update, after = tx.update(nobody(method), state, PARAMS)
            now, then = (find_state(s, dpjax.PrivatizeState) for s in (state, after))
            bound = mechanism.bound(mechanism.thresholds_at(now.step, now.threshold, groups))
            gradient = jax.tree.map(lambda u: u * B / bound, own_noise(method, update, state))
            statistic = None
            if mechanism.adaptive:
                statistic = then.threshold.noisy / mechanism.threshold.inner.sensitivity
            return after, (gradient, statistic)

        return jax.lax.scan(step, at_step(tx.init(PARAMS), start), length=2)[1]

    return jax.jit(jax.vmap(run, in_axes=(0, None)))


def rms(sample):
    return float(np.sqrt(np.mean(np.square(np.asarray(sample, np.float64)))))


def total(sigmas):
    return sum(sigma**-2 for sigma in sigmas) ** -0.5


def measured(method):
    """Yields (step, least and most total sigma over leaves and bins), from the compiled update."""
    keys = jax.random.split(jax.random.key(7), 20_000 if method.adaptive else 4_000)
    run = compiled_run(method)
    for start in STARTS:
        gradient, statistic = run(keys, start)
        for i in range(2):
            parts = [[rms(leaf[:, i]) for leaf in gradient.values()]]
            if statistic is not None:
                parts.append([rms(column) for column in statistic[:, i].T])
            yield start + i, total(map(min, parts)), total(map(max, parts))


def deviations(method, run=None):
    """By how much what `run` releases differs from the method's event, at its worst, per step."""
    sigmas = accounted(event(method, sampling_of(method), STEPS))
    assert len(sigmas) == STEPS
    return [
        max(abs(least / sigmas[t] - 1), abs(most / sigmas[t] - 1))
        for t, least, most in measured(overheard(method) if run is None else run)
    ]


@pytest.mark.parametrize("name", SOUND)
def test_the_noise_of_the_run_is_the_sigma_of_the_event(name):
    assert max(deviations(registry.METHODS[name](SIGMA))) < TOLERANCE


@pytest.mark.parametrize("name", some(SOUND, ["dp_sgd", "dc_sgd_e", "andrew", "adaclip", "psasc"]))
def test_the_same_with_a_group_for_each_leaf(name):
    assert max(deviations(grouped(registry.METHODS[name](SIGMA)))) < TOLERANCE


def test_as_printed_auto_dp_sgd_has_no_event():
    with pytest.raises(TypeError, match=r"expected a dpjax\.Mechanism"):
        event(registry.METHODS["auto_dp_sgd"](SIGMA), Poisson.with_rate(0.01), STEPS)


@pytest.mark.parametrize("name", ["dc_sgd_e", "andrew"])
def test_a_gradient_without_its_share_of_the_split_is_seen(name, monkeypatch):
    """Rejects sigma_T := sigma: the statistic would come for free."""
    monkeypatch.setattr(noise, "sigma_gradient", lambda sigma, sigma_s: jnp.float32(sigma))
    assert min(deviations(registry.METHODS[name](SIGMA))) > TOLERANCE


@pytest.mark.parametrize(("name", "louder"), [("dc_sgd_e", 2.0), ("andrew", 2.0), ("andrew", 0.5)])
def test_another_noise_on_the_statistic_is_seen(name, louder):
    """Rejects sigma_S doubled or halved under a sigma_T that does not know of it."""
    method = registry.METHODS[name](SIGMA)
    assert min(deviations(method, overheard(method, louder))) > TOLERANCE


def test_a_schedule_that_the_event_does_not_follow_is_seen():
    """Rejects sigma_0 in place of sigma_t."""
    for name in ("zhang_adaptive", "auto_dp_sgd_sound"):
        constant = registry.METHODS[name](SIGMA)
        constant = constant.replace(noise_multiplier=SIGMA)
        first, *_, last = deviations(constant, overheard(registry.METHODS[name](SIGMA)))
        assert first < TOLERANCE < last
