"""Parameters in loops: as constants, as scanned inputs, in the carry, and loops in loops."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.gradients.ghost.cases_chains import sines
from tests.gradients.ghost.cases_conv import conv
from tests.gradients.ghost.registry import case, kernel, rows


def cell(params, h, x):
    return jnp.tanh(x @ params["u"] + h @ params["w"] + params["b"])


def recurrent_params(rng, inputs=2, hidden=3):
    u, w = kernel(rng, inputs, hidden), kernel(rng, hidden, hidden)
    return {"u": u, "w": w, "b": kernel(rng, hidden)}


def zeros_like_state(params):
    return jnp.zeros_like(params["b"])


@case
def recurrent(rng):
    def loss(params, xs):
        def step(h, x):
            h = cell(params, h, x)
            return h, jnp.sum(h**2)

        h, outputs = jax.lax.scan(step, zeros_like_state(params), xs)
        return sines(h) + sines(outputs)

    return loss, recurrent_params(rng), rows(rng, 5, 2)


@case
def recurrent_reversed_and_unrolled(rng):
    def loss(params, xs):
        def step(h, x):
            return cell(params, h, x), ()

        zero = zeros_like_state(params)
        last, _ = jax.lax.scan(step, zero, xs, reverse=True, unroll=2)
        return sines(last)

    return loss, recurrent_params(rng), rows(rng, 5, 2)


@case
def learned_initial_state(rng):
    def loss(params, xs):
        def step(h, x):
            return cell(params, h, x), h

        h, states = jax.lax.scan(step, params["start"], xs)
        return sines(h) + sines(states)

    return loss, recurrent_params(rng) | {"start": kernel(rng, 3)}, rows(rng, 4, 2)


@case
def stacked_layers(rng):
    """The parameters of the layers are scanned over; the input is shared by all of them."""

    def loss(params, x):
        def layer(h, own):
            h = h + jnp.tanh(h @ own["w"] + own["b"] + x @ params["shared"])
            return h, ()

        h, _ = jax.lax.scan(layer, x, params["layers"])
        return sines(h)

    layers = {"w": kernel(rng, 3, 3, 3), "b": kernel(rng, 3, 3)}
    return loss, {"layers": layers, "shared": kernel(rng, 3, 3)}, rows(rng, 2, 3)


@case
def nested_loops(rng):
    """An outer loop over rows, an inner one over columns; the inner kernel also outside."""

    def loss(params, xs):
        def inner(h, x):
            return cell(params, h, x), ()

        def outer(h, row):
            h, _ = jax.lax.scan(inner, jnp.tanh(h @ params["w"]), row)
            return h * params["scale"], h

        h, states = jax.lax.scan(outer, zeros_like_state(params), xs)
        return sines(h) + sines(states)

    return loss, recurrent_params(rng) | {"scale": kernel(rng, 3)}, rows(rng, 3, 2, 2)


@case
def stacked_recurrent_layers(rng):
    """Scanned parameters of the outer loop are constants of the inner one."""

    def loss(params, xs):
        def layer(sequence, own):
            def step(h, x):
                h = cell(own, h, x)
                return h, h

            return jax.lax.scan(step, zeros_like_state(own), sequence)[::-1]

        sequence, last = jax.lax.scan(layer, xs, params)
        return sines(sequence) + sines(last)

    params = {"u": kernel(rng, 2, 3, 3), "w": kernel(rng, 2, 3, 3), "b": kernel(rng, 2, 3)}
    return loss, params, rows(rng, 4, 3)


@case
def parameter_carried_and_changed(rng):
    def loss(params, xs):
        def step(carry, x):
            h, w = carry
            return (jnp.tanh(h @ w + x), 0.9 * w), ()

        (h, w), _ = jax.lax.scan(step, (zeros_like_state(params), params["w"]), xs)
        return sines(h) + jnp.sum(h @ w)

    return loss, {"w": kernel(rng, 3, 3), "b": kernel(rng, 3)}, rows(rng, 4, 3)


@case
def loop_over_parameters_alone(rng):
    """A chain that is a loop."""

    def loss(params, x):
        def step(w, power):
            return w @ params["w"] * power, ()

        w, _ = jax.lax.scan(step, params["w"], jnp.array([0.5, 0.7], params["w"].dtype))
        return sines(x @ w)

    return loss, {"w": kernel(rng, 3, 3)}, rows(rng, 2, 3)


@case
def for_loop(rng):
    def loss(params, x):
        def body(i, h):
            return jnp.tanh(h @ params["w"] + params["rows"][i])

        return sines(jax.lax.fori_loop(0, 3, body, x))

    return loss, {"w": kernel(rng, 3, 3), "rows": kernel(rng, 3, 3)}, rows(rng, 3)


@case
def while_loop_without_parameters(rng):
    """The number of rounds hangs on the example."""

    def loss(w, x):
        def large(state):
            return (jnp.sum(state[0] ** 2) > 1) & (state[1] < 9)

        start = jax.lax.stop_gradient(x), 0
        small, rounds = jax.lax.while_loop(large, lambda s: (s[0] / 2, s[1] + 1), start)
        return sines(small @ w) * (1 + rounds)

    return loss, kernel(rng, 3, 2), 4 * rows(rng, 3)


@case
def mapped_over_positions(rng):
    def loss(params, xs):
        y = jax.vmap(lambda x: jnp.tanh(x @ params["u"] + params["b"]))(xs)
        return sines(jax.lax.map(lambda h: jnp.tanh(h @ params["w"]), y))

    return loss, recurrent_params(rng), rows(rng, 4, 2)


@case
def convolution_in_a_loop(rng):
    def loss(params, frames):
        def step(h, frame):
            h = jnp.tanh(conv(frame, params["in"]) + conv(h, params["w"]) + params["b"])
            return h, ()

        zero = jnp.zeros_like(frames, shape=(3, 3, 2))
        return sines(jax.lax.scan(step, zero, frames)[0])

    params = {"in": kernel(rng, 3, 3, 1, 2), "w": kernel(rng, 2, 2, 2, 2), "b": kernel(rng, 2)}
    return loss, params, rows(rng, 3, 3, 3, 1)


@case
def lookup_in_a_loop(rng):
    def loss(params, ids):
        def step(h, i):
            return cell(params, h, params["table"][i]), ()

        return sines(jax.lax.scan(step, zeros_like_state(params), ids)[0])

    ids = np.array([[0, 1, 1, 3], [2, 2, 2, 2], [3, 0, 1, 2], [0, 0, 3, 3], [1, 2, 1, 2]])
    return loss, recurrent_params(rng) | {"table": kernel(rng, 4, 2)}, ids


@case
def weight_norm_in_a_loop(rng):
    """The chain is inside the loop, and so is a product of two leaves."""

    def loss(params, xs):
        def step(h, x):
            w = params["g"] * params["v"] / jnp.linalg.norm(params["v"], axis=0)
            return jnp.tanh(h @ w + x), ()

        return sines(jax.lax.scan(step, jnp.zeros_like(xs[0]), xs)[0])

    return loss, {"v": kernel(rng, 3, 3), "g": np.array([0.5, 1, 2])}, rows(rng, 4, 3)


@case
def running_product(rng):
    """An associative scan: strided slices and products of parameters and data."""

    def loss(decay, x):
        gates = jax.nn.sigmoid(x * decay)
        return sines(jax.lax.associative_scan(jnp.multiply, gates))

    return loss, rng.standard_normal(2), rows(rng, 5, 2)
