"""What results depend on, and which derivatives count as linear."""

import jax
import jax.numpy as jnp
import pytest

from dpjax.gradients.ghost.planner import blocks_of
from dpjax.gradients.ghost.trace import analysed
from dpjax.gradients.jaxprs import has_linear_derivative, needed_values
from tests.gradients.ghost.cases import get


def ruled(backward):
    """Returns the identity with a derivative of its own, ``backward(w, ct)``."""
    function = jax.custom_vjp(lambda w: w)
    function.defvjp(lambda w: (w, w), lambda w, ct: (backward(w, ct),))
    return function


def traced(function):
    return jax.make_jaxpr(function)(jnp.ones((2, 2))).jaxpr.eqns[0]


LINEAR = {
    "straight_through": lambda w, ct: ct,
    "reversed": lambda w, ct: -0.5 * ct,
    "masked": lambda w, ct: jnp.where(jnp.abs(w) < 1, ct, 0),
    "scaled_by_the_parameter": lambda w, ct: ct * jnp.tanh(w) / (1 + w**2),
    "projected": lambda w, ct: ct - w * jnp.sum(w * ct) / jnp.sum(w * w),
    "rounded": lambda w, ct: ct.astype(jnp.bfloat16).astype(ct.dtype),
    "mixed": lambda w, ct: jnp.concatenate([ct[:1], ct[1:] @ w]).T,
    "none": lambda w, ct: jnp.zeros_like(ct),
}
NOT_LINEAR = {
    "clipped": lambda w, ct: jnp.clip(ct, -1, 1),
    "signs": lambda w, ct: jnp.sign(ct),
    "normalised": lambda w, ct: ct / jnp.linalg.norm(ct),
    "squared": lambda w, ct: ct * ct,
    "divided_by": lambda w, ct: w / ct,
    "shifted": lambda w, ct: ct + w,
    "constant": lambda w, ct: w,
    "masked_by_itself": lambda w, ct: jnp.where(jax.jit(jnp.isfinite)(ct), ct, 0),
    "masked_to_the_parameter": lambda w, ct: jnp.where(w > 0, ct, w),
    "padded_with_ones": lambda w, ct: jnp.pad(ct[1:], ((1, 0), (0, 0)), constant_values=1.0),
    "to_integers": lambda w, ct: ct.astype(jnp.int32).astype(ct.dtype),
    "looked_up_by_itself": lambda w, ct: ct[jnp.argmax(ct[0])] + 0 * ct,
    "not_known": lambda w, ct: jax.lax.cumprod(ct),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_rules(name):
    assert has_linear_derivative(traced(ruled(LINEAR[name])))


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_rules_that_are_not_linear(name):
    rule = ruled(NOT_LINEAR[name])
    assert not has_linear_derivative(traced(rule))
    # Also inside of a program that the equation holds.
    assert not has_linear_derivative(traced(lambda w: jax.lax.cond(True, rule, jnp.sin, w)))


def test_derivatives_of_jax_are_linear():
    for function in (jnp.sin, jax.nn.relu, jax.nn.softplus, jax.nn.gelu):
        assert has_linear_derivative(traced(function)), function


@pytest.mark.parametrize(
    ("name", "turns"), [("linear_derivative_in_a_loop", 0), ("nonlinear_derivative_in_a_loop", 1)]
)
def test_only_rules_that_are_not_linear_cost_a_gradient_for_each_turn(name, turns):
    case = get(name)
    program = analysed(case.loss, case.params, jax.tree.map(lambda x: x[0], case.batch))
    sites = [site for block in blocks_of(program) for site in block.sites]
    assert {len(site.node.loops) for site in sites} == {turns}


def in_a_loop(a, b, c, d, xs):
    """State c enters b one turn later, and b enters a; d is on its own, and so is x."""

    def step(carry, x):
        a, b, c, d = carry
        return (a + b, jax.jit(jnp.sin)(c), c, d * x), x

    (a, *_, d), ys = jax.lax.scan(step, (a, b, c, d), xs)
    return a, d, ys


@pytest.mark.parametrize(
    ("results", "operands"), [("a", "abc"), ("d", "dx"), ("y", "x"), ("ay", "abcx"), ("", "")]
)
def test_what_the_results_of_a_loop_depend_on(results, operands):
    program = jax.make_jaxpr(in_a_loop)(1.0, 1.0, 1.0, 1.0, jnp.ones(3)).jaxpr
    found = needed_values(program, [name in results for name in "ady"])
    assert {name for name, var in zip("abcdx", program.invars, strict=True) if var in found} == set(
        operands
    )


def test_what_the_results_of_calls_and_branches_depend_on():
    """A call is looked into. A branch is not: all it takes counts as used."""

    @jax.jit
    def swapped(a, b):
        return 2 * b, 3 * a

    def outer(a, b, c):
        first, second = swapped(a, b)
        third, _ = jax.lax.cond(c > 0, swapped, lambda *both: both, b, c)
        return first, second, third

    program = jax.make_jaxpr(outer)(1.0, 1.0, 1.0).jaxpr
    for result, operands in enumerate(["b", "a", "bc"]):
        found = needed_values(program, [i == result for i in range(3)])
        assert {n for n, v in zip("abc", program.invars, strict=True) if v in found} == set(
            operands
        )
