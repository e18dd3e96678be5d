"""Parameters behind derivatives of their own that are not linear in the cotangent.

What such a backward rule makes of a sum is not the sum of what it makes of each term. So it counts
how often the rule is applied and to what: once for each call, to all that came back to that call.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests.gradients.ghost.cases_chains import sines
from tests.gradients.ghost.registry import case, kernel, rows


def squashed(ct):
    """A rule that no scale and no sum commutes with."""
    return ct / (0.3 + jnp.abs(ct)) + 0.1 * ct**2


@jax.custom_vjp
def limited(w):
    return w


limited.defvjp(lambda w: (w, None), lambda _, ct: (squashed(ct),))


@jax.custom_gradient
def rescaled(w):
    """By the length of the cotangent, and by the parameter."""
    return jnp.sin(w), lambda ct: jnp.cos(w) * ct / (0.5 + jnp.sqrt(jnp.sum(ct**2)))


@jax.custom_vjp
def balanced(w, v):
    return w, v


def _balanced_backward(_, cts):
    length = jnp.sqrt(sum(jnp.sum(ct**2) for ct in cts))
    return tuple(ct / (0.5 + length) for ct in cts)


balanced.defvjp(lambda w, v: ((w, v), None), _balanced_backward)


@jax.custom_vjp
def limited_product(w, x):
    return x @ w


def _limited_product_backward(kept, ct):
    w, x = kept
    return squashed(x.T @ ct), squashed(ct) @ w.T


limited_product.defvjp(lambda w, x: (x @ w, (w, x)), _limited_product_backward)


@jax.custom_vjp
def reversed_and_doubled(w):
    return w


reversed_and_doubled.defvjp(lambda w: (w, None), lambda _, ct: (-2 * ct,))


@case
def nonlinear_derivative_used_once(rng):
    def loss(w, x):
        return sines(x @ limited(w))

    return loss, kernel(rng, 3, 4), rows(rng, 2, 3)


@case
def nonlinear_derivative_used_twice(rng):
    def loss(w, x):
        own = limited(w)
        return sines(jnp.tanh(x @ own) @ own)

    return loss, kernel(rng, 3, 3), rows(rng, 2, 3)


@case
def nonlinear_derivative_called_twice(rng):
    """Two calls of one rule on one parameter: each is given its own cotangent."""

    def loss(w, x):
        return sines(jnp.tanh(x @ limited(w)) @ limited(w))

    return loss, kernel(rng, 3, 3), rows(rng, 2, 3)


@case
def nonlinear_derivative_of_a_tied_embedding(rng):
    """Looked up, multiplied, sliced, added, and used once without the rule."""

    def loss(params, example):
        x, ids = example
        table = limited(params["table"])
        h = jnp.tanh(table[ids] + x @ params["table"][:3] + params["bias"])
        return sines(h @ table.T) + jnp.sin(x[0, 0] * table[1, 2]) + sines(2 * table[0] * x[1])

    params = {"table": kernel(rng, 5, 3), "bias": kernel(rng, 3)}
    return loss, params, (rows(rng, 2, 3), rng.integers(0, 5, (5, 2)))


@case
def nonlinear_derivatives_nested(rng):
    """The inner result is used on its own too, and the outer's twice, once transposed."""

    def loss(w, x):
        inner = limited(w)
        outer = rescaled(jnp.tanh(inner) * 2)
        return sines(jnp.tanh(x @ outer) @ outer.T) + sines(x @ inner)

    return loss, kernel(rng, 3, 3), rows(rng, 2, 3)


@case
def nonlinear_derivative_in_a_loop(rng):
    """Called in every turn: the rule is given each turn's cotangent."""

    def loss(params, xs):
        def step(h, x):
            w = limited(params["w"])
            return jnp.tanh(h @ w + x @ w + limited(2 * params["b"])), ()

        return sines(jax.lax.scan(step, jnp.zeros_like(xs[0]), xs)[0])

    return loss, {"w": kernel(rng, 3, 3), "b": kernel(rng, 3)}, rows(rng, 4, 3)


@case
def nonlinear_derivative_in_front_of_a_loop(rng):
    """Called once: the rule is given the sum over the turns."""

    def loss(w, xs):
        own = limited(w)

        def step(h, x):
            return jnp.tanh(h @ own + x), h * own[0]

        last, states = jax.lax.scan(step, jnp.ones_like(xs[0]), xs)
        return sines(last @ own) + sines(states)

    return loss, kernel(rng, 3, 3), rows(rng, 4, 3)


@case
def nonlinear_derivative_between_two_loops(rng):
    """In the outer body, used in all turns of the inner one; and one more in the inner body."""

    def loss(params, xs):
        def outer(h, row):
            w = limited(params["w"])

            def inner(h, x):
                return jnp.tanh(h @ w + x + rescaled(params["b"]) * limited(w[0])), ()

            return jax.lax.scan(inner, h, row)[0], ()

        return sines(jax.lax.scan(outer, jnp.zeros_like(xs[0, 0]), xs)[0])

    return loss, {"w": kernel(rng, 2, 2), "b": kernel(rng, 2)}, rows(rng, 3, 2, 2)


@case
def nonlinear_derivative_of_scanned_layers(rng):
    """A layer for each turn, used twice there, and a rule on a parameter that all turns share."""

    def loss(params, x):
        def layer(h, own):
            w = limited(own)
            return jnp.tanh(h @ w) @ w.T + limited(params["b"]), ()

        return sines(jax.lax.scan(layer, x, params["w"])[0])

    return loss, {"w": kernel(rng, 3, 3, 3), "b": kernel(rng, 3)}, rows(rng, 2, 3)


@case
def nonlinear_derivative_in_a_branch_and_a_program_of_parameters(rng):
    """Programs of parameters alone that hold the rule, in a loop over data.

    One parameter is another one in each turn, the others are the same in all.
    """

    def loss(params, xs):
        def step(h, given):
            x, each = given
            w = jax.lax.cond(each > 0, lambda w: each * limited(w), jnp.sin, params["w"])

            def fold(total, row):
                return total + limited(row) * limited(params["b"]), ()

            return jnp.tanh(h @ w + x * jax.lax.scan(fold, params["b"], w)[0]), ()

        given = xs, params["each"]
        return sines(jax.lax.scan(step, jnp.zeros_like(xs[0]), given)[0])

    each = np.array([0.5, -1.0, 1.5, 0.7])
    return loss, {"w": kernel(rng, 3, 3), "b": kernel(rng, 3), "each": each}, rows(rng, 4, 3)


@case
def nonlinear_derivative_of_two_leaves(rng):
    """One rule for both, which looks at the length of both cotangents."""

    def loss(params, x):
        w, v = balanced(params["w"], params["v"])
        return sines(jnp.tanh(x @ w) @ w + v) + sines(v * x)

    return loss, {"w": kernel(rng, 3, 3), "v": kernel(rng, 3)}, rows(rng, 2, 3)


@case
def nonlinear_derivative_of_parameters_and_data(rng):
    """One kernel in two such products, in a loop and behind a rule of its own."""

    def loss(w, xs):
        own = limited(w)

        def step(h, x):
            return jnp.tanh(limited_product(own, h) + limited_product(w, x)), ()

        last, _ = jax.lax.scan(step, jnp.zeros_like(xs[0]), xs)
        return sines(limited_product(w, limited_product(w, last)))

    return loss, kernel(rng, 3, 3), rows(rng, 3, 2, 3)


@case
def nonlinear_derivative_under_a_checkpoint_and_jit(rng):
    def loss(w, x):
        @jax.checkpoint
        def block(own, x):
            own = rescaled(own)
            return jnp.tanh(x @ own) @ own

        return sines(jax.jit(block)(limited(w), block(w, x)))

    return loss, kernel(rng, 3, 3), rows(rng, 2, 3)


@case
def linear_derivative_in_a_loop(rng):
    """Rules that are linear, on a parameter that is used twice in every turn."""

    def loss(params, xs):
        def step(h, x):
            w = reversed_and_doubled(jax.nn.relu(params["w"]))
            return jnp.tanh(h @ w + x @ w), ()

        return sines(jax.lax.scan(step, jnp.zeros_like(xs[0]), xs)[0])

    return loss, {"w": kernel(rng, 3, 3)}, rows(rng, 4, 3)
