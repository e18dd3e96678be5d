"""Parameters that go through operations of their own before they meet the data."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.gradients.ghost.cases_conv import conv
from tests.gradients.ghost.registry import case, kernel, named, rows


def sines(x):
    return jnp.sum(jnp.sin(x) * jnp.arange(1.0, 1 + x.size, dtype=x.dtype).reshape(x.shape))


def over_kernel(w):
    return tuple(range(w.ndim - 1))


@case
def weight_standardisation(rng):
    def loss(params, x):
        w = params["w"]
        mean = jnp.mean(w, axis=over_kernel(w), keepdims=True)
        spread = jnp.var(w, axis=over_kernel(w), keepdims=True)
        return sines(conv(x, params["gain"] * (w - mean) * jax.lax.rsqrt(spread + 1e-4)))

    return loss, {"w": kernel(rng, 3, 3, 2, 3), "gain": np.ones(3)}, rows(rng, 4, 4, 2)


@case
def weight_norm(rng):
    """Two leaves end in one kernel."""

    def loss(params, x):
        direction, length = params["v"], params["g"]
        return sines(x @ (length * direction / jnp.linalg.norm(direction, axis=0)))

    return loss, {"v": kernel(rng, 3, 4), "g": np.array([1.0, 2, 0.5, 1.5])}, rows(rng, 5, 3)


@case
def spectral_norm(rng):
    """Power iterations from a fixed vector, on a kernel seen as a matrix."""

    def loss(w, x):
        matrix = w.reshape(-1, w.shape[-1])
        v = jnp.ones(matrix.shape[1], w.dtype)
        for _ in range(2):
            u = matrix @ v
            u = u / jnp.linalg.norm(u)
            v = matrix.T @ u
            v = v / jnp.linalg.norm(v)
        return sines(conv(x, w / (u @ matrix @ v)))

    return loss, kernel(rng, 2, 2, 2, 3), rows(rng, 3, 3, 2)


@case
def reshaped_and_transposed(rng):
    def loss(params, x):
        y = x @ params["a"].T.reshape(3, 2, 4).transpose(0, 2, 1).reshape(3, 8)
        return sines(y * jnp.broadcast_to(params["b"][:, None], (4, 2)).reshape(8))

    return loss, {"a": kernel(rng, 8, 3), "b": rng.standard_normal(4)}, rows(rng, 5, 3)


@case
def concatenated(rng):
    def loss(params, x):
        w = jnp.concatenate([params["q"], params["k"]], axis=1)
        b = jnp.stack([params["c"], params["d"]]).reshape(-1)
        return sines(x @ w + b)

    params = {"q": kernel(rng, 3, 2), "k": kernel(rng, 3, 4)}
    return loss, params | {"c": kernel(rng, 3), "d": kernel(rng, 3)}, rows(rng, 4, 3)


@case
def fused_and_split(rng):
    """The parts of one kernel meet the data in three places."""

    def loss(w, x):
        q, k, v = (x @ part for part in jnp.split(w, 3, axis=1))
        return sines(jax.nn.softmax(q @ k.T) @ v)

    return loss, kernel(rng, 3, 12), rows(rng, 4, 3)


@case
def sliced(rng):
    def loss(w, x):
        return sines(x @ w[:, 1:3]) + sines(x * w[1, ::2]) + jnp.sin(x[0, 0] * w[2, 4])

    return loss, kernel(rng, 3, 5), rows(rng, 4, 3)


@case
def padded_rolled_and_flipped(rng):
    def loss(w, x):
        return sines(x @ jnp.roll(jnp.flip(jnp.pad(w, ((1, 0), (0, 2))), 0), 1, axis=1))

    return loss, kernel(rng, 2, 3), rows(rng, 4, 3)


@case
def permuted_by_a_constant(rng):
    def loss(w, x):
        return sines(x @ w[np.array([2, 0, 1, 1])])

    return loss, kernel(rng, 3, 2), rows(rng, 3, 4)


@case
def broadcast_to_positions(rng):
    def loss(params, x):
        tiled = jnp.tile(params["bias"], (4, 1)) + params["scalar"]
        return sines(tiled * x) + sines(jnp.repeat(params["each"], 2) + x)

    params = {"bias": kernel(rng, 4), "scalar": np.float64(0.7), "each": kernel(rng, 2)}
    return loss, params, rows(rng, 4, 4)


@case
def functions_of_parameters(rng):
    def loss(params, x):
        mixed = jax.nn.softmax(params["logits"]) @ params["experts"].reshape(2, 12)
        scale = jnp.exp(params["scale"]) + jax.nn.softplus(params["shift"])
        return sines(x @ mixed.reshape(3, 4) * scale + jnp.cumsum(jnp.sort(params["shift"])))

    params = {"logits": kernel(rng, 2), "experts": kernel(rng, 2, 3, 4)}
    return loss, params | {"scale": kernel(rng, 4), "shift": kernel(rng, 4)}, rows(rng, 4, 3)


@case
def straight_through_rounding(rng):
    def loss(w, x):
        return sines(x @ (w + jax.lax.stop_gradient(jnp.round(4 * w) / 4 - w)))

    return loss, kernel(rng, 3, 4), rows(rng, 4, 3)


@case
def lower_triangle(rng):
    """A constant mask, and a Cholesky factor of the covariance: a Gaussian's likelihood."""

    def loss(params, x):
        factor = jnp.tril(params["w"], -1) + jnp.diag(jnp.exp(params["log"]))
        white = jax.scipy.linalg.solve_triangular(factor, x - params["mean"], lower=True)
        return 0.5 * jnp.sum(white**2) + jnp.sum(params["log"])

    return (
        loss,
        {"w": kernel(rng, 3, 3), "log": kernel(rng, 3), "mean": kernel(rng, 3)},
        rows(rng, 3),
    )


@case
def filtered_in_frequency(rng):
    """Complex numbers on the way."""

    def loss(w, x):
        return sines(jnp.fft.irfft(jnp.fft.rfft(w) * jnp.fft.rfft(x), n=6))

    return loss, kernel(rng, 6), rows(rng, 6)


def rounding(dtype):
    def build(rng):
        def loss(params, x):
            narrow = jax.tree.map(lambda p: p.astype(dtype), params)
            h = jnp.tanh(x.astype(dtype) @ narrow["w"] + narrow["b"])
            return jnp.sum((h @ narrow["v"]).astype(params["w"].dtype) ** 2)

        params = {"w": kernel(rng, 3, 4), "b": kernel(rng, 4), "v": kernel(rng, 4, 2)}
        return loss, params, rows(rng, 3, 3)

    return build


named("cast_to_bfloat16", rounding(jnp.bfloat16), rounded=jnp.bfloat16)
named("cast_to_float16", rounding(jnp.float16), rounded=jnp.float16)
named("cast_to_float32", rounding(jnp.float32), rounded=jnp.float32)
