"""Noise off, dpjax clips like optax and jax-privacy wherever all of them are defined."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from dpjax import Mechanism, clipped_sum, methods, per_example_grads, privatize, rules

KEY = jax.random.key(0)
ROWS = 32
CLIPS = (0.8, 1e4)
# jax-privacy 2.0 calls a function that optax 0.2.8 deprecates.
THEIR_NORM = pytest.mark.filterwarnings(
    "ignore:optax.global_norm is deprecated in favor of optax.tree.norm:DeprecationWarning"
)
THEIR_LOOP = pytest.mark.skipif(
    not hasattr(optax, "microbatching"), reason="jax-privacy loops by a newer optax"
)
PARAMS = {"bias": (3,), "kernel": (4, 3), "scale": ()}


def gradients(seed: int = 0) -> Any:
    """Per-example gradients of several leaves, norms on both sides of every threshold; one zero."""
    rng = np.random.default_rng(seed)
    length = rng.lognormal(0.0, 1.5, ROWS).astype(np.float32)
    length[5] = 0.0
    return {
        name: jnp.asarray(
            rng.standard_normal((ROWS, *shape)).astype(np.float32)
            * length.reshape((-1,) + (1,) * len(shape))
        )
        for name, shape in PARAMS.items()
    }


def zeros() -> Any:
    return {name: jnp.zeros(shape) for name, shape in PARAMS.items()}


def our_sum(mechanism: Mechanism, grads: Any) -> Any:
    """sum_i w_i g_i, before noise."""
    return clipped_sum(mechanism, grads, privatize(mechanism, 1, KEY).init(zeros())).gradient


def assert_same(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance * float(np.abs(b).max()))


@pytest.mark.parametrize("clip", [*CLIPS, float(np.finfo(np.float32).max)])
def test_one_step_is_optax_aggregate(clip: float) -> None:
    """optax divides by the realised batch, dpjax by the expected: equal when these are."""
    theirs = optax.contrib.differentially_private_aggregate(clip, 0.0, KEY)
    ours = methods.dp_sgd(0.0, threshold=clip).transformation(ROWS, KEY)
    grads, params = gradients(), zeros()
    want, _ = theirs.update(grads, theirs.init(params), params)
    got, _ = ours.update(grads, ours.init(params), params)
    assert_same(got, want)


def test_an_infinite_threshold_clips_nothing_and_takes_no_noise() -> None:
    grads = gradients()
    got = our_sum(methods.dp_sgd(0.0, threshold=math.inf), grads)
    assert_same(got, jax.tree.map(lambda g: np.asarray(g, np.float64).sum(axis=0), grads))
    for sigma in (None, 1.0):
        with pytest.raises(ValueError, match=r"^threshold = inf: expected a finite number > 0$"):
            methods.dp_sgd(sigma, threshold=math.inf)


def test_a_run_with_adam_is_optax_run() -> None:
    """The whole chain, several steps: parameters stay together."""
    private = privatize(Mechanism(rules.abadi(), 1.0, 0.0), ROWS, KEY)
    peer = optax.contrib.differentially_private_aggregate(1.0, 0.0, KEY)
    finals = []
    for first in (private, peer):
        tx = optax.chain(first, optax.adam(0.1))
        params = zeros()
        state, update = tx.init(params), jax.jit(tx.update)
        for step in range(5):
            updates, state = update(gradients(step), state, params)
            params = optax.apply_updates(params, updates)
        finals.append(params)
    assert_same(*finals, tolerance=1e-4)


@pytest.mark.parametrize("clip", CLIPS)
def test_flat_clipping_is_optax_global_norm_clip(clip: float) -> None:
    grads = gradients(1)
    want, clipped = optax.per_example_global_norm_clip(grads, clip)
    assert_same(our_sum(Mechanism(rules.abadi(), clip, 0.0), grads), want)
    norms = per_example_norms(grads)
    assert int(clipped) == int((norms > clip).sum())


def per_example_norms(grads: Any) -> np.ndarray:
    flat = [np.asarray(g, np.float64).reshape(ROWS, -1) for g in jax.tree.leaves(grads)]
    return np.linalg.norm(np.hstack(flat), axis=1)


@pytest.mark.parametrize("clip", CLIPS)
def test_per_leaf_clipping_is_optax_layer_norm_clip(clip: float) -> None:
    """A scalar C over G leaves is C / sqrt(G) each, optax's uniform layers."""
    grads = gradients(2)
    want, _ = optax.per_example_layer_norm_clip(grads, clip, uniform=True)
    assert_same(our_sum(Mechanism(rules.abadi(), clip, 0.0, "per_leaf"), grads), want)


@pytest.mark.parametrize("clip", CLIPS)
def test_a_threshold_for_each_leaf_is_optax_layers_by_size(clip: float) -> None:
    """optax's other choice, C sqrt(d_g / d), is a tuple of thresholds; the bound is C again."""
    grads = gradients(3)
    sizes = [leaf[0].size for leaf in jax.tree.leaves(grads)]
    own = tuple(clip * math.sqrt(size / sum(sizes)) for size in sizes)
    mechanism = Mechanism(rules.abadi(), own, 0.0, "per_leaf")
    want, _ = optax.per_example_layer_norm_clip(grads, clip, uniform=False)
    assert_same(our_sum(mechanism, grads), want)
    assert float(mechanism.bound(jnp.asarray(own))) == pytest.approx(clip, rel=1e-6)


def loss(params: Any, example: Any) -> jax.Array:
    """A small regression of one example."""
    x, y = example
    hidden = jnp.tanh(x @ params["kernel"] + params["bias"])
    return jnp.square(params["scale"] * jnp.sum(hidden) - y)


def regression(seed: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    params = {n: jnp.asarray(rng.standard_normal(s), jnp.float32) for n, s in PARAMS.items()}
    x = rng.standard_normal((ROWS, 4)).astype(np.float32)
    y = rng.lognormal(0, 1, ROWS).astype(np.float32)
    return params, (jnp.asarray(x), jnp.asarray(y))


@THEIR_LOOP
@THEIR_NORM
@pytest.mark.parametrize(("clip", "chunk"), [(1.0, None), (0.05, 5)])
def test_clipping_from_the_loss_is_jax_privacy(clip: float, chunk: int | None) -> None:
    clipping = pytest.importorskip("jax_privacy.clipping")
    params, data = regression()
    theirs = clipping.clipped_grad(
        loss, l2_clip_norm=clip, keep_batch_dim=False, return_values=True, return_grad_norms=True
    )
    want, aux = theirs(params, data)
    grads = per_example_grads(loss, chunk=chunk)(params, data)
    np.testing.assert_allclose(grads.norms, aux.grad_norms, 1e-5)
    np.testing.assert_allclose(grads.losses, aux.values, 1e-5)
    mechanism = Mechanism(rules.abadi(), clip, 0.0)
    assert theirs.sensitivity() == mechanism.bound(jnp.array([clip]))
    tx = privatize(mechanism, 1, KEY)
    got, _ = tx.update(grads, tx.init(params), params)
    assert_same(got, want)


@THEIR_NORM
def test_normalising_to_unit_sensitivity_is_jax_privacy() -> None:
    """Their rescale_to_unit_norm is our rule Global-Adapt with scale 1: min(1 / z, 1 / n)."""
    clipping = pytest.importorskip("jax_privacy.clipping")
    params, data = regression()
    theirs = clipping.clipped_grad(
        loss, l2_clip_norm=0.8, keep_batch_dim=False, rescale_to_unit_norm=True, normalize_by=7.0
    )
    tx = privatize(Mechanism(rules.global_adapt(scale=1.0), 0.8, 0.0), 7.0, KEY)
    got, _ = tx.update(per_example_grads(loss)(params, data), tx.init(params), params)
    assert_same(got, theirs(params, data))
    assert theirs.sensitivity() == pytest.approx(1 / 7)


@THEIR_LOOP
@THEIR_NORM
def test_a_padded_row_is_jax_privacys_padding() -> None:
    clipping = pytest.importorskip("jax_privacy.clipping")
    params, data = regression()
    padding = jnp.arange(ROWS) % 3 == 0
    theirs = clipping.clipped_grad(loss, l2_clip_norm=1.0, keep_batch_dim=False)
    tx = privatize(Mechanism(rules.abadi(), 1.0, 0.0), 1, KEY)
    grads = per_example_grads(loss)(params, data, mask=~padding)
    got, _ = tx.update(grads, tx.init(params), params)
    assert_same(got, theirs(params, data, is_padding_example=padding))


@THEIR_LOOP
@THEIR_NORM
def test_a_row_that_is_not_finite_adds_nothing_in_either() -> None:
    clipping = pytest.importorskip("jax_privacy.clipping")
    params, (x, y) = regression()
    data = x.at[3, 1].set(jnp.nan), y.at[8].set(jnp.inf)
    theirs = clipping.clipped_grad(loss, l2_clip_norm=1.0, keep_batch_dim=False, nan_safe=True)
    tx = privatize(Mechanism(rules.abadi(), 1.0, 0.0), 1, KEY)
    got, _ = tx.update(per_example_grads(loss)(params, data), tx.init(params), params)
    assert_same(got, theirs(params, data))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
