"""Programs for accelerators, without one: their text, and their arithmetic on a CPU.

What is lowered for TPU or CUDA is looked at as HLO before the compiler: there a choice by platform
has one branch left, and an index that is a constant.
"""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.gradients.platforms import CPU, GPU, TPU, assumed
from tests.gradients.ghost import test_bound
from tests.gradients.ghost.cases import get
from tests.gradients.ghost.contract import cast

PLATFORMS = {"tpu": TPU, "cuda": GPU}


def step_of(loss, engine):
    grads_of = dpjax.per_example_grads(loss, engine=engine)

    def step(params, batch):
        return grads_of(params, batch).aggregate(lambda n: (1 / (1 + n), n)).rounded

    return step


@cache
def lowered(name, engine, platform):
    case = get(name)
    traced = jax.jit(step_of(case.loss, engine)).trace(*cast((case.params, case.batch), "float32"))
    return traced.lower(lowering_platforms=(platform,)).compiler_ir("hlo").as_hlo_text()


def conditionals(text):
    """Returns the lines with a choice that is made when the program runs."""
    lines = [line for line in text.splitlines() if " conditional(" in line]
    several = [
        line for line in lines if "branch_computations={" not in line or "," in branches(line)
    ]
    return [line for line in several if not re.search(r"= s32\[\] conditional", line)]


def branches(line):
    return re.search(r"branch_computations=\{([^}]*)\}", line).group(1)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("name", "engine", "loops"),
    [
        ("conv_network", "ghost", 1),
        ("conv_network", "ghost_two_pass", 1),
        ("conv_network", "vmap", 0),
        ("recurrent", "ghost", 2),
    ],
)
def test_no_loop_over_rows_few_branches_and_the_matrix_units_own_precision(
    name, engine, loops, platform
):
    """A network's own loops, and one over rows that need care where gradients are not kept."""
    text = lowered(name, engine, platform)
    assert len(re.findall(r" while\(", text)) == loops
    assert len(conditionals(text)) <= 2
    assert "highest" not in text


def test_a_cpu_takes_its_own_program():
    """Else the text above would show nothing."""
    text = lowered("conv_network", "ghost", "cpu")
    assert "highest" in text
    assert text != lowered("conv_network", "ghost", "tpu")


def test_one_exported_program_serves_every_platform():
    case = get("conv_network")
    step = step_of(case.loss, "ghost")
    arguments = cast((case.params, case.batch), "float32")
    exported = jax.export.export(jax.jit(step), platforms=("cpu", "cuda", "tpu"))(*arguments)
    found, expected = exported.call(*arguments), jax.jit(step)(*arguments)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["vmap", "ghost"])
def test_depthwise_convolutions_are_not_unrolled(engine):
    """The program is as long for 4 channels and 2 rows as for 12 channels and 6 rows."""

    def length(channels, rows):
        def loss(w, x):
            out = jax.lax.conv_general_dilated(
                x[None],
                w,
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=channels,
            )
            return jnp.sum(jnp.tanh(out))

        arguments = jnp.ones((3, 3, 1, channels)), jnp.ones((rows, 5, 5, channels))
        text = jax.jit(step_of(loss, engine)).lower(*arguments).as_text()
        return len(text.splitlines())

    assert length(4, 2) == length(12, 6)


def rounded(x, platform):
    """Rounds float32 to the nearest of `bits` bits, by NumPy alone."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    unit = 2.0**platform.bits
    return np.ldexp(np.round(mantissa * unit) / unit, exponent)


@pytest.mark.parametrize("platform", [TPU, GPU], ids=["tpu", "gpu"])
@pytest.mark.parametrize("layer", ["dense_16", "conv_4x4"])
@pytest.mark.parametrize("engine", ["ghost", "ghost_two_pass"])
def test_no_contribution_exceeds_its_bound_in_reduced_precision(layer, platform, engine):
    """The rows of `test_bound`, hostile ones among them, with a platform's factors on a CPU."""
    loss, x_shape, shape, b_shape = test_bound.LAYERS[layer]
    mechanism = dpjax.Mechanism(dpjax.rules.auto_v(), 1.0, 1.0)
    state = dpjax.privatize(mechanism, 1, jax.random.key(0)).init(jnp.zeros(shape))

    @jax.jit
    def run(x, b):
        grads = dpjax.per_example_grads(loss, engine=engine)(jnp.zeros(shape), (x[None], b[None]))
        return dpjax.clipped_sum(mechanism, grads, state).gradient

    rng = np.random.default_rng(0)
    with assumed(platform):
        for kind in test_bound.KINDS:
            for _ in range(3):
                row = (np.asarray(part, np.float32) for part in kind(rng, x_shape, b_shape))
                length = np.linalg.norm(np.asarray(run(*row), np.float64))
                assert np.isfinite(length), kind
                assert length <= 1 + test_bound.SLACK, kind
                if kind is test_bound.normal:  # clipped to its bound, and not dropped
                    assert length > 0.98


@pytest.mark.parametrize("platform", [TPU, GPU], ids=["tpu", "gpu"])
def test_norms_are_those_of_the_gradient_from_rounded_factors(platform):
    rng = np.random.default_rng(1)
    x, b = (rng.standard_normal((6, 16, 64)).astype(np.float32) for _ in range(2))
    exact = np.einsum("ntk,ntc->nkc", rounded(x, platform), rounded(b, platform))
    expected = np.linalg.norm(exact.reshape(6, -1), axis=1)
    weights = np.linspace(0.1, 1.7, 6)
    with assumed(platform):
        grads = dpjax.per_example_grads(test_bound.dense, engine="ghost")(
            jnp.zeros((64, 64)), (jnp.asarray(x), jnp.asarray(b))
        )
        norms, total = np.asarray(grads.norms), grads.weighted_sum(jnp.asarray(weights))
    assert np.all(norms >= expected)
    np.testing.assert_allclose(norms, expected, rtol=2e-3)
    summed = np.tensordot(weights, exact, 1)
    np.testing.assert_allclose(total, summed, atol=2e-5 * np.abs(summed).max())


def test_an_equation_that_asks_for_precision_gets_it():
    def loss(w, x):
        return jnp.sum(jnp.sin(jnp.dot(x, w, precision="highest")))

    rng = np.random.default_rng(2)
    w, x = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((64, 64), (3, 8, 64))
    )
    with assumed(CPU):
        expected = dpjax.per_example_grads(loss, engine="ghost")(w, x).norms
    with assumed(TPU):
        found = dpjax.per_example_grads(loss, engine="ghost")(w, x).norms
    np.testing.assert_allclose(found, expected, rtol=1e-6)
