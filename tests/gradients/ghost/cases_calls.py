"""Parameters that go into other programs: branches, checkpoints, custom derivatives, gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.gradients.ghost.cases_chains import sines
from tests.gradients.ghost.registry import case, kernel, rows


@case
def branches(rng):
    """The data, a parameter and a number choose a branch."""

    def loss(params, x):
        y = jax.lax.cond(
            x[0] > 0, lambda w: jnp.tanh(x @ w), lambda w: jnp.sum(w) * x[:2], params["w"]
        )
        y = jax.lax.cond(params["b"][0] > 0, lambda: y * params["b"], lambda: y - params["b"])
        return sines(jax.lax.cond(jnp.float32(1) > 0, lambda: y @ params["v"], lambda: y))

    return (
        loss,
        {"w": kernel(rng, 3, 2), "b": np.array([0.5, -1]), "v": kernel(rng, 2, 2)},
        rows(rng, 3),
    )


@case
def experts_by_a_switch(rng):
    def loss(params, example):
        x, chosen = example
        branches = [lambda x, w=w: jnp.tanh(x @ w) for w in params["experts"]]
        return sines(jax.lax.switch(chosen, branches, x) @ params["out"])

    params = {"experts": [kernel(rng, 3, 2) for _ in range(3)], "out": kernel(rng, 2, 2)}
    return loss, params, (rows(rng, 2, 3), np.array([0, 1, 2, 1, 7]))


@case
def branch_in_a_loop(rng):
    def loss(w, xs):
        def step(h, x):
            return jax.lax.cond(x[0] > 0, lambda: jnp.tanh(h @ w + x), lambda: h), ()

        return sines(jax.lax.scan(step, jnp.ones_like(xs[0]), xs)[0])

    return loss, kernel(rng, 2, 2), rows(rng, 4, 2)


@case
def checkpointed_block(rng):
    def loss(params, x):
        @jax.checkpoint
        def block(own, x):
            return x + jnp.tanh(x @ own["w"] + own["b"]) @ own["v"]

        for own in params:
            x = block(own, x)
        return sines(x)

    shapes = {"w": (3, 4), "b": (4,), "v": (4, 3)}
    return (
        loss,
        [{name: kernel(rng, *shape) for name, shape in shapes.items()} for _ in range(2)],
        rows(rng, 2, 3),
    )


@case
def checkpointed_loop(rng):
    def loss(params, xs):
        @jax.checkpoint
        def step(h, x):
            return jnp.tanh(h @ params["w"] + x + params["b"]), ()

        return sines(jax.lax.scan(step, jnp.zeros_like(xs[0]), xs)[0])

    return loss, {"w": kernel(rng, 3, 3), "b": kernel(rng, 3)}, rows(rng, 4, 3)


@case
def jitted_parts(rng):
    @jax.jit
    def layer(x, w):
        return jnp.tanh(x @ w)

    def loss(params, x):
        shared = jax.jit(lambda p: p / jnp.sum(p**2))(params["w"])
        return sines(layer(layer(x, params["w"]), shared))

    return loss, {"w": kernel(rng, 3, 3)}, rows(rng, 2, 3)


@jax.custom_jvp
def scaled_product(x, w):
    return x @ w


@scaled_product.defjvp
def _(primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    return x @ w, 2 * (dx @ w) + 3 * (x @ dw)  # not the derivative, so that it must be used


@case
def custom_jvp_of_parameters_and_data(rng):
    def loss(params, x):
        return sines(scaled_product(jnp.tanh(scaled_product(x, params["w"])), params["v"]))

    return loss, {"w": kernel(rng, 3, 4), "v": kernel(rng, 4, 2)}, rows(rng, 2, 3)


@jax.custom_vjp
def bounded_product(x, w):
    return x @ w


def _forward(x, w):
    return x @ w, (x, w)


def _backward(kept, ct):
    x, w = kept
    ct = jnp.clip(ct, -0.5, 0.5)
    return ct @ w.T, 3 * x.T @ ct  # not the derivative, so that it must be used


bounded_product.defvjp(_forward, _backward)


@case
def custom_vjp_of_parameters_and_data(rng):
    def loss(params, x):
        return sines(bounded_product(jnp.tanh(bounded_product(x, params["w"])), params["v"]))

    return loss, {"w": kernel(rng, 3, 4), "v": kernel(rng, 4, 2)}, rows(rng, 2, 3)


@jax.custom_vjp
def reversed_gradient(x):
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, ct: (-2 * ct,))


@case
def custom_vjp_of_parameters_alone(rng):
    """A chain whose gradient is not that of its values."""

    def loss(params, x):
        hidden = reversed_gradient(x @ reversed_gradient(params["w"]))
        return sines(jnp.tanh(hidden) @ reversed_gradient(params["v"]))

    return loss, {"w": kernel(rng, 3, 4), "v": kernel(rng, 4, 2)}, rows(rng, 2, 3)


@case
def gradient_inside_the_loss(rng):
    """A penalty on the slope by the input: every kernel meets data twice more."""

    def loss(params, x):
        def net(x):
            return jnp.sum(jnp.tanh(x @ params["w"]) @ params["v"])

        value, slope = jax.value_and_grad(net)(x)
        return value + jnp.sum(slope**2)

    return loss, {"w": kernel(rng, 3, 4), "v": kernel(rng, 4)}, rows(rng, 3)


@case
def step_inside_the_loss(rng):
    """One inner step of gradient descent on the example, as in meta-learning."""

    def loss(params, example):
        x, y = example

        def inner(p):
            return jnp.sum((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2)

        moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(inner)(params))
        return inner(moved)

    params = {"w": kernel(rng, 3, 4), "v": kernel(rng, 4)}
    return loss, params, (rows(rng, 2, 3), rows(rng, 2))
