"""The proven bound through the ghost engines: no contribution is longer than its bound.

Norms from Gram matrices cancel where inputs hardly change over the positions and cotangents have
mean zero over them, as in front of a normalisation: in float32 the squared norm may even come out
negative. One row at a time goes through `clipped_sum`, as in `privatize`; the length of what comes
out is taken in float64. The loss is ``sum(b * (x @ w))``, so that b is the cotangent.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from tests.gradients.ghost.cases_conv import conv

SLACK = 2e-7
RULES = {"auto_v": dpjax.rules.auto_v(), "abadi": dpjax.rules.abadi()}
ENGINES = ("ghost", "ghost_two_pass", "auto")


def dense(w, example):
    x, b = example
    return jnp.sum(b * (x @ w))


def scanned(w, example):
    def step(total, given):
        x, b = given
        return total + jnp.sum(b * (x @ w)), ()

    return jax.lax.scan(step, jnp.zeros((), w.dtype), example)[0]


def convolved(w, example):
    x, b = example
    return jnp.sum(b * conv(x, w))


# Loss, shape of x, of the kernel, of b. Few positions and many weights call for Gram matrices.
LAYERS = {
    "dense_1": (dense, (1, 5), (5, 3), (1, 3)),
    "dense_16": (dense, (16, 64), (64, 64), (16, 64)),
    "dense_64": (dense, (64, 160), (160, 160), (64, 160)),
    "dense_1024": (dense, (1024, 8), (8, 6), (1024, 6)),
    "scan_16": (scanned, (16, 64), (64, 64), (16, 64)),
    "scan_1024": (scanned, (1024, 8), (8, 6), (1024, 6)),
    "conv_4x4": (convolved, (4, 4, 32), (3, 3, 32, 32), (4, 4, 32)),
    "conv_32x32": (convolved, (32, 32, 2), (3, 3, 2, 3), (32, 32, 3)),
}
SLOW_LAYERS = {"dense_256": (dense, (256, 600), (600, 600), (256, 600))}


def normal(rng, x, b):
    return rng.standard_normal(x), rng.standard_normal(b)


def mean_free(rng, x, b, spread=1e-4):
    """Inputs near a constant; cotangents that sum to zero over the positions."""
    positions = tuple(range(len(b) - 1))
    x = 1 + spread * rng.standard_normal(x)
    b = rng.standard_normal(b)
    if b.size == b.shape[-1]:
        return x, b
    return x, b - b.mean(axis=positions, keepdims=True)


def mean_free_exactly(rng, x, b):
    """The same with inputs that do not change at all: the true gradient is rounding alone."""
    return mean_free(rng, x, b, spread=0.0)


def mean_free_slightly(rng, x, b):
    return mean_free(rng, x, b, spread=1e-2)


def huge(rng, x, b):
    return 1e18 * rng.standard_normal(x), rng.standard_normal(b)


def tiny(rng, x, b):
    return 1e-18 * rng.standard_normal(x), rng.standard_normal(b)


def near_overflow(rng, x, b):
    return 1e18 * rng.standard_normal(x), 1e18 * rng.standard_normal(b)


def near_underflow(rng, x, b):
    return 1e-18 * rng.standard_normal(x), 1e-18 * rng.standard_normal(b)


def huge_mean_free(rng, x, b):
    x, b = mean_free(rng, x, b)
    return 1e12 * x, 1e5 * b


def lopsided(rng, x, b):
    """One large position among small ones, large inputs with small cotangents."""
    x, b = 1e6 * rng.standard_normal(x), 1e-9 * rng.standard_normal(b)
    b[0] *= 1e4
    return x, b


KINDS = (
    normal,
    mean_free,
    mean_free_slightly,
    mean_free_exactly,
    huge,
    tiny,
    near_overflow,
    near_underflow,
    huge_mean_free,
    lopsided,
)


@cache
def contribution(layer, engine, rule):
    """Returns a jitted function of one row: what the rule lets into the sum at C = 1."""
    loss, _, shape, _ = (LAYERS | SLOW_LAYERS)[layer]
    mechanism = dpjax.Mechanism(RULES[rule], 1.0, 1.0)
    grads_of = dpjax.per_example_grads(loss, engine=engine)
    state = dpjax.privatize(mechanism, 1, jax.random.key(0)).init(jnp.zeros(shape))

    @jax.jit
    def run(x, b):
        grads = grads_of(jnp.zeros(shape), (x[None], b[None]))
        return dpjax.clipped_sum(mechanism, grads, state).gradient

    return run


def lengths(layer, engine, rule, kind, draws):
    _, x, _, b = (LAYERS | SLOW_LAYERS)[layer]
    rng = np.random.default_rng(0)
    run = contribution(layer, engine, rule)
    found = []
    for _ in range(draws):
        row = (np.asarray(part, np.float32) for part in kind(rng, x, b))
        found.append(np.linalg.norm(np.asarray(run(*row), np.float64).ravel()))
    return np.array(found)


def check(layer, engine, rule, draws=4):
    bound = float(RULES[rule].bound(np.float64(1.0)))
    worst = {}
    for kind in KINDS:
        found = lengths(layer, engine, rule, kind, draws)
        assert np.all(np.isfinite(found)), kind
        worst[kind.__name__] = np.max(found) / bound - 1
    assert max(worst.values()) <= SLACK, f"relative excess: {worst}"
    if rule == "auto_v":  # such rows are clipped to their bound, and not dropped
        # Two passes allow for the rounding of a sum over up to 1024 positions.
        short = 1e-2 if engine == "ghost_two_pass" else 1e-4
        assert min(worst[name] for name in ("normal", "huge", "tiny")) > -short, worst


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", LAYERS)
def test_no_contribution_exceeds_its_bound(layer, engine):
    """With auto_v, whose bound every length attains, so that nothing hides in a margin."""
    check(layer, engine, "auto_v")


@pytest.mark.parametrize("layer", ["dense_16", "scan_16", "conv_4x4"])
def test_no_contribution_of_plain_clipping_exceeds_its_bound(layer):
    check(layer, "ghost", "abadi")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", [*LAYERS, *SLOW_LAYERS])
def test_no_contribution_of_many_exceeds_its_bound(layer, engine):
    check(layer, engine, "auto_v", draws=40)


@pytest.mark.parametrize("layer", ["dense_16", "dense_64"])
def test_a_plain_gram_norm_would_exceed_it(layer):
    """``|x^T b|^2 = sum((x x^T) * (b b^T))`` in float32, on the very rows of the tests above."""
    _, x_shape, _, b_shape = LAYERS[layer]
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(4):
        x, b = (np.asarray(part, np.float32) for part in mean_free(rng, x_shape, b_shape))
        square = np.sum((x @ x.T) * (b @ b.T), dtype=np.float32)
        true = np.linalg.norm(x.astype(np.float64).T @ b.astype(np.float64))
        # A square that is negative would be taken as zero, and the weight would have no limit.
        worst = max(worst, true / np.sqrt(max(square, 1e-30)))
    assert worst > 1 + 1e-3
