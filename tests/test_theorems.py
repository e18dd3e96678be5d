"""Theorems 1 and 2 of Automatic Clipping (Bu et al. 2023), with the optimizers of optax.

AUTO-V and AUTO-S at threshold R release exactly R times what they release at 1, noise included (for
R a power of two; for others, to the noise's grid, which has powers of two for its spacing). So
(R, lr, weight decay) walks the path of (1, lr', weight decay'), where, with "coupled" decay added
to the gradient and "decoupled" decay added to the optimizer's output:

- theorem 1, non-adaptive: lr' = lr R, decay' = decay / R, as R g + decay w = R (g + decay' w);
- theorem 2, adaptive (blind to a factor on all gradients), coupled: lr' = lr, decay' = decay / R;
- theorem 2, adaptive, decoupled: lr' = lr, decay' = decay.

The tests fix (lr', decay') and derive (lr, decay) from R. Theorem 2 takes an adaptive optimizer's
epsilon for 0: the cases below take 1e-30, since a coordinate may be exactly 0 on the noise's grid;
what the defaults do is tested apart. Batches are fresh in every step, both paths share the noise
key.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import rules

BATCH, STEPS, SIGMA = 16, 20, 0.5
RULES = {"auto_v": rules.auto_v(), "auto_s": rules.auto_s(gamma=0.01)}
# Powers of two: the noise's grid scales with R exactly for them, and to a sixteenth otherwise.
RADII = (0.125, 4.0, 64.0)
# Bounds on `gap`, relative to the distance walked. In float32 (eps 1.2e-7), after 20 steps, equal
# paths were seen to differ by at most 2.3e-7; unequal ones, where eps is not the cause, by 1.7e-2.
EQUAL, UNEQUAL = 2e-6, 5e-3

ZERO = 1e-30  # an adaptive optimizer's eps: nothing beside R g, and no division by 0

DECOUPLED = "theorem 2, decoupled"
# How (lr, decay) at R follow from (lr', decay') at 1.
PAIRINGS: dict[str, Callable[[float, float, float], tuple[float, float]]] = {
    "theorem 1": lambda r, lr, decay: (lr / r, decay * r),
    "theorem 2": lambda r, lr, decay: (lr, decay * r),
    DECOUPLED: lambda r, lr, decay: (lr, decay),
}


class Case(NamedTuple):
    pairing: str
    lr: float
    optimizer: Callable[[Any, Any], optax.GradientTransformation]  # of (lr, decay)
    decay: float = 0.3


def coupled(optimizer: Callable[[Any], optax.GradientTransformation]) -> Callable[[Any, Any], Any]:
    return lambda lr, decay: optax.chain(optax.add_decayed_weights(decay), optimizer(lr))


HOLDS = {
    # Linear in the gradients so far: a factor R on them is a factor R on the update.
    "sgd": Case("theorem 1", 0.5, coupled(optax.sgd)),
    "heavy ball": Case("theorem 1", 0.1, coupled(lambda lr: optax.sgd(lr, 0.9))),
    "nesterov": Case("theorem 1", 0.1, coupled(lambda lr: optax.sgd(lr, 0.9, nesterov=True))),
    # First moment over the root of the second, both from 0: R / sqrt(R^2). AdaMax: R / |R|.
    "adam": Case("theorem 2", 0.05, coupled(lambda lr: optax.adam(lr, eps=ZERO))),
    "nadam": Case("theorem 2", 0.05, coupled(lambda lr: optax.nadam(lr, eps=ZERO))),
    "adamax": Case("theorem 2", 0.05, coupled(lambda lr: optax.adamax(lr, eps=ZERO))),
    # Gradient over the root of the sum of squares, if that sum starts at 0; it does not by default.
    "adagrad": Case("theorem 2", 0.1, coupled(lambda lr: optax.adagrad(lr, 0.0, eps=ZERO))),
    # Gradient over its own norm, per leaf, if no leaf is 0. Optax's decay is added to the gradient
    # before that, so it is coupled; eps is 0 by default.
    "lars": Case("theorem 2", 40.0, optax.lars),
    # Optax adds these two's decay to Adam's output, which does not know of R.
    "adamw": Case(DECOUPLED, 0.05, lambda lr, wd: optax.adamw(lr, eps=ZERO, weight_decay=wd)),
    "lamb": Case(DECOUPLED, 0.05, lambda lr, wd: optax.lamb(lr, eps=ZERO, weight_decay=wd)),
}
TINY = 1e-20
OTHERS = {
    "radam": Case("theorem 2", 0.2, coupled(lambda lr: optax.radam(lr, eps=ZERO))),
    "adadelta": Case("theorem 2", 10.0, coupled(optax.adadelta)),
    "adadelta, tiny eps": Case(
        "theorem 2", 0.01, coupled(lambda lr: optax.adadelta(lr / TINY**0.5, eps=TINY))
    ),
    "adagrad, default accumulator": Case(
        "theorem 2", 0.3, coupled(lambda lr: optax.adagrad(lr, eps=ZERO))
    ),
    "adagrad, default eps": Case("theorem 2", 0.1, coupled(lambda lr: optax.adagrad(lr, 0.0))),
    "adam, default eps": Case("theorem 2", 0.05, coupled(optax.adam)),
    "lamb, default eps": Case(DECOUPLED, 0.05, lambda lr, wd: optax.lamb(lr, weight_decay=wd)),
}
CASES = HOLDS | OTHERS


def network() -> Any:
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    return {k: jnp.asarray(rng.normal(0, 0.4, s), jnp.float32) for k, s in shapes.items()}


def batches() -> Any:
    rng = np.random.default_rng(1)
    # Examples of all lengths, so that the gradients' norms lie on both sides of 1.
    x = rng.normal(size=(STEPS, BATCH, 4)) * rng.uniform(0, 1, size=(STEPS, BATCH, 1))
    return jnp.asarray(x, jnp.float32), jnp.asarray(rng.integers(0, 3, size=(STEPS, BATCH)))


def loss(params: Any, example: Any) -> jax.Array:
    x, label = example
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return 0.5 * optax.softmax_cross_entropy_with_integer_labels(logits, label)


def one_of(index: Any, lr: Any, decay: Any) -> optax.GradientTransformation:
    """Returns the optimizer of `CASES` with this index, which may be traced.

    It is there for speed alone: noise and gradients then compile once for all optimizers.
    """
    optimizers = [case.optimizer(lr, decay) for case in CASES.values()]

    def branch(i: int) -> Callable[..., Any]:
        def update(updates: Any, states: Any, params: Any) -> Any:
            updates, new = optimizers[i].update(updates, states[i], params)
            return updates, (*states[:i], new, *states[i + 1 :])

        return update

    return optax.GradientTransformation(
        lambda params: tuple(o.init(params) for o in optimizers),
        lambda updates, states, params=None: jax.lax.switch(
            index, [branch(i) for i in range(len(optimizers))], updates, states, params
        ),
    )


@functools.cache
def compiled(rule: rules.Rule, groups: str | None) -> Callable[..., Any]:
    grads_of = dpjax.per_example_grads(loss)

    def train(start: Any, radius: Any, index: Any, lr: Any, decay: Any) -> jax.Array:
        # A constant schedule in place of a number, as `radius` is traced: one program for all.
        mechanism = dpjax.Mechanism(rule, lambda _: radius, SIGMA, groups)
        private = dpjax.privatize(mechanism, BATCH, jax.random.key(7))
        tx = optax.chain(private, one_of(index, lr, decay))

        def step(carry: Any, batch: Any) -> Any:
            params, state = carry
            updates, state = tx.update(grads_of(params, batch), state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), ravel_pytree(params)[0]

        return jax.lax.scan(step, (start, tx.init(start)), batches())[1]

    # All runs together take less time than the compiler does.
    return jax.jit(train, compiler_options={"xla_backend_optimization_level": 0})


def path(
    name: str, rule: rules.Rule, radius: float, pairing: str = "", *, start: Any = None, groups=None
) -> np.ndarray:
    """Returns the parameters after each step, less the initial ones: (STEPS, d)."""
    case = CASES[name]
    start = network() if start is None else start
    lr, decay = PAIRINGS[pairing or case.pairing](radius, case.lr, case.decay)
    index = list(CASES).index(name)
    out = compiled(rule, groups)(start, radius, index, lr, decay)
    return np.asarray(out, np.float64) - np.asarray(ravel_pytree(start)[0])


def gap(name: str, rule: rules.Rule, radius: float, pairing: str = "", **options: Any) -> float:
    """Returns how far the paths at R and at 1 end from each other, over the distance walked."""
    one = path(name, rule, 1.0, **options)[-1]
    walked = np.linalg.norm(one)
    assert 0.5 < walked < 50.0
    return float(np.linalg.norm(path(name, rule, radius, pairing, **options)[-1] - one) / walked)


both_rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
all_radii = pytest.mark.parametrize("radius", RADII)
all_that_hold = pytest.mark.parametrize("name", HOLDS)


@all_radii
@all_that_hold
@both_rules
def test_threshold_is_absorbed_by_lr_and_decay(rule, name, radius):
    assert gap(name, rule, radius) < EQUAL


@all_that_hold
@both_rules
def test_power_of_two_is_absorbed_bit_by_bit(rule, name):
    """A power of two moves exponents only, so no constant hides below the tolerance."""
    assert gap(name, rule, 4.0) == 0.0


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_holds_for_groups(name):
    """Appendix B.3: per layer, R scales every layer's release alike."""
    assert all(gap(name, rules.auto_s(), r, groups="per_leaf") < EQUAL for r in RADII)


@all_that_hold
def test_other_pairings_fail(name):
    """Each optimizer obeys one pairing only: lr and decay matter, and both do.

    For LAMB the paper names the coupled pairing, decay / R; optax's LAMB is decoupled.
    """
    others = set(PAIRINGS) - {HOLDS[name].pairing}
    assert all(gap(name, rules.auto_s(), 3.0, pairing) > UNEQUAL for pairing in others)


@all_radii
@all_that_hold
def test_abadi_clipping_does_not_obey(name, radius):
    """min(1, c / n) is no multiple of c where n < c: the same comparison must fail."""
    assert gap(name, rules.abadi(), radius) > UNEQUAL


@all_radii
@both_rules
def test_radam_is_a_counter_example(rule, radius):
    """The paper lists RAdam. Its first steps (five by default) are plain momentum: R's length.

    Until the variance of the second moment can be rectified (rho_t >= 5), RAdam does not divide by
    it. rho_1 = 1 for every beta_2, so no setting avoids it.
    """
    one, other = path("radam", rule, 1.0), path("radam", rule, radius)
    np.testing.assert_allclose(other[0], radius * one[0], rtol=1e-4, atol=1e-6 * radius)
    assert gap("radam", rule, radius) > UNEQUAL


@both_rules
def test_adadelta_is_a_counter_example_by_its_eps(rule):
    """The paper lists AdaDelta, sqrt(E[x^2] + eps) / sqrt(E[g^2] + eps) g, whose eps cannot be 0.

    The numerator's eps does not meet R, but sets the step: with eps = 0 nothing moves. The
    denominator's is compared with R^2 g^2. With eps -> 0 and lr ~ 1 / sqrt(eps), it obeys.
    """
    assert gap("adadelta", rule, 0.125) > UNEQUAL
    assert all(gap("adadelta", rule, r) > 100 * EQUAL for r in RADII)
    assert all(gap("adadelta, tiny eps", rule, r) < EQUAL for r in RADII)


@all_radii
@both_rules
def test_adagrad_is_a_counter_example_by_its_default_accumulator(rule, radius):
    """optax.adagrad starts the sum of squares at 0.1, against which R^2 g^2 is large or small."""
    assert gap("adagrad, default accumulator", rule, radius) > UNEQUAL


@both_rules
def test_lars_is_a_counter_example_on_a_zero_leaf(rule):
    """A leaf that starts at zero, as biases do in Flax, has no trust ratio: optax takes 1.

    Its first update is then lr times the raw gradient, R times as long as at 1; the other leaves'
    are equal.
    """
    start = {**network(), "b1": jnp.zeros(8)}  # b1 comes first of the ravelled leaves
    one, other = (path("lars", rule, radius, start=start)[0] for radius in (1.0, 4.0))
    np.testing.assert_allclose(other[:8], 4.0 * one[:8], rtol=1e-4)
    np.testing.assert_allclose(other[8:], one[8:], rtol=1e-4, atol=1e-6)
    assert gap("lars", rule, 4.0, start=start) > UNEQUAL


@both_rules
def test_default_eps_breaks_theorem_2_at_small_thresholds(rule):
    """An eps is compared with R times a gradient, here about 0.06 R per coordinate.

    AdaGrad's 1e-7 is compared with the *square*, so that already R = 1/8 shows; LAMB's 1e-6 and
    Adam's 1e-8 are not. At R >= 1, Adam's is lost in rounding.
    """
    assert gap("adagrad, default eps", rule, 0.125) > 100 * EQUAL
    assert gap("adagrad, default eps", rule, 2.0**-13) > UNEQUAL
    assert gap("lamb, default eps", rule, 2.0**-13) > UNEQUAL
    assert gap("adam, default eps", rule, 2.0**-13) > 100 * EQUAL
    assert gap("adam, default eps", rule, 64.0) < EQUAL
