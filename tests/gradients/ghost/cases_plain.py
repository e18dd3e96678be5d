"""Plain functions: how a parameter may meet the data, once, twice or never."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.gradients.ghost.registry import case, kernel, named, rows

LOGISTIC = jax.nn.softplus


@case
def linear_regression(rng):
    def loss(params, example):
        x, y = example
        return 0.5 * (x @ params["w"] + params["b"] - y) ** 2

    return loss, {"w": kernel(rng, 4), "b": rng.standard_normal()}, (rows(rng, 4), rows(rng))


@case
def logistic_regression(rng):
    def loss(w, example):
        x, y = example
        return LOGISTIC(-y * jnp.dot(w, x))

    return loss, kernel(rng, 4), (rows(rng, 4), np.sign(rows(rng)))


@case
def softmax_regression(rng):
    def loss(params, example):
        logits = params["w"] @ example["x"] + params["b"]
        return -jax.nn.log_softmax(logits)[example["y"]]

    batch = {"x": rows(rng, 4), "y": np.arange(5) % 3}
    return loss, {"w": rng.standard_normal((3, 4)), "b": kernel(rng, 3)}, batch


@case
def dense_over_positions(rng):
    def loss(params, x):
        h = jax.nn.gelu(x @ params["w"] + params["b"])
        return jnp.sum(jnp.tanh(h @ params["v"]))

    params = {"w": kernel(rng, 3, 4), "b": kernel(rng, 4), "v": kernel(rng, 4, 2)}
    return loss, params, rows(rng, 6, 3)


@case
def wide_dense_over_few_positions(rng):
    """Few positions, many weights: where Gram matrices are the cheaper way."""

    def loss(params, x):
        return jnp.sum(jnp.sin(jnp.tanh(x @ params["w"]) @ params["v"] + params["b"]))

    params = {"w": kernel(rng, 24, 32), "v": kernel(rng, 32, 16), "b": kernel(rng, 16)}
    return loss, params, rows(rng, 3, 24)


@case
def penalty(rng):
    """One leaf meets no data at all: its gradient is the same for every example."""

    def loss(params, x):
        squares = sum(jnp.sum(p**2) for p in params.values())
        return jnp.sum(jnp.tanh(x @ params["w"])) + 0.1 * squares

    return loss, {"w": kernel(rng, 3, 2), "only_here": kernel(rng, 4)}, rows(rng, 3)


@case
def no_data(rng):
    return lambda w, x: jnp.sum(w**2), kernel(rng, 3), rows(rng, 2)


@case
def scalar_is_the_loss(rng):
    return lambda w, x: w, np.float64(0.3), rows(rng)


@case
def used_twice(rng):
    def loss(w, x):
        return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ w.T))

    return loss, kernel(rng, 3, 4), rows(rng, 2, 3)


@case
def used_at_every_layer(rng):
    def loss(params, x):
        for _ in range(3):
            x = jnp.tanh(x @ params["w"] + params["b"])
        return jnp.sum(x**2)

    return loss, {"w": kernel(rng, 3, 3), "b": kernel(rng, 3)}, rows(rng, 3)


@case
def unused_leaf(rng):
    def loss(params, x):
        return jnp.sum(jnp.sin(x @ params["w"]))

    return loss, {"w": kernel(rng, 3, 2), "unused": kernel(rng, 2, 2)}, rows(rng, 3)


@case
def stopped_gradients(rng):
    def loss(params, x):
        still = jax.lax.stop_gradient(params)
        return jnp.sum(jnp.tanh(x @ params["w"]) * still["v"] + x @ still["w"])

    return loss, {"w": kernel(rng, 3, 2), "v": kernel(rng, 2)}, rows(rng, 3)


@case
def products_of_parameters(rng):
    """A low-rank update: two leaves meet one another before the data."""

    def loss(params, x):
        return jnp.sum(jnp.sin(x @ (params["w"] + params["a"] @ params["b"])))

    params = {"w": kernel(rng, 3, 4), "a": kernel(rng, 3, 2), "b": kernel(rng, 2, 4)}
    return loss, params, rows(rng, 2, 3)


@case
def arithmetic_with_broadcasting(rng):
    def loss(params, x):
        x = x + params["row"] - params["column"][:, None]
        x = params["scalar"] * x * params["one"] / (2 + jnp.tanh(params["row"]))
        x = params["whole"] - x / params["denominator"] + params["numerator"] / (2 + x**2)
        return jnp.sum(jnp.sin(x))

    shapes = {"row": (4,), "column": (3,), "scalar": (), "one": (1, 4), "whole": (3, 4)}
    params = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    params |= {"denominator": np.full((3, 1), 1.7), "numerator": rng.standard_normal(4)}
    return loss, params, rows(rng, 3, 4)


@case
def uncommon_operations(rng):
    """Powers, maxima, clipping: a parameter meets data in operations without a formula."""

    def loss(params, x):
        y = jnp.maximum(x, params["floor"]) + jnp.clip(x, -params["limit"], params["limit"])
        y = y + jnp.logaddexp(x, params["floor"]) + jnp.abs(x) ** params["power"]
        y = y + jnp.arctan2(x, params["limit"])
        return jnp.sum(y * jnp.sum(params["floor"] > 0))

    params = {"floor": kernel(rng, 4), "limit": np.float64(0.8), "power": np.float64(1.5)}
    return loss, params, rows(rng, 3, 4)


@case
def chosen_by_a_mask(rng):
    """A token for what is masked, as in BERT and masked autoencoders; and for the other side."""

    def loss(params, example):
        x, mask = example
        x = jnp.where(mask[:, None], params["token"], x)
        x = jnp.where(x > 0, x, params["slope"] * x)
        return jnp.sum(jnp.sin(jnp.where(x > 1, params["high"], x) @ params["w"]))

    params = {"token": kernel(rng, 3), "slope": kernel(rng, 3), "w": kernel(rng, 3, 2)}
    params |= {"high": np.float64(0.2)}
    return loss, params, (rows(rng, 4, 3), rows(rng, 4) > 0)


@case
def class_token_and_positions(rng):
    def loss(params, x):
        x = jnp.concatenate([params["token"], x]) + params["positions"]
        return jnp.sum(jnp.tanh(x @ params["w"])[0] + jnp.sin(x[0]))

    params = {"token": kernel(rng, 1, 3), "positions": kernel(rng, 4, 3), "w": kernel(rng, 3, 3)}
    return loss, params, rows(rng, 3, 3)


@case
def bilinear(rng):
    def loss(w, example):
        return jnp.sin(example["x"] @ w @ example["y"])

    return loss, kernel(rng, 3, 4), {"x": rows(rng, 3), "y": rows(rng, 4)}


def einsum_case(equation, *shapes):
    """A contraction of the data with a parameter, in this order or the other."""
    operands = equation.split("->")[0].split(",")

    def build(rng):
        def loss(params, x):
            values = {"x": x, "w": params}
            order = [values[name] for name in operands_names]
            return jnp.sum(jnp.sin(jnp.einsum(equation, *order)))

        operands_names = shapes[0]
        by_name = dict(zip(operands_names, shapes[1:], strict=True))
        return loss, kernel(rng, *by_name["w"]), rows(rng, *by_name["x"])

    assert len(operands) == 2
    return build


EINSUMS = {
    "heads": ("td,hdk->htk", "xw", (5, 3), (2, 3, 4)),
    "heads_out": ("htk,hkd->td", "xw", (2, 5, 3), (2, 3, 4)),
    "parameter_first": ("hdk,td->htk", "wx", (2, 3, 4), (5, 3)),
    "shared_position_axis": ("td,td->t", "xw", (4, 3), (4, 3)),
    "diagonal_over_positions": ("td,tdk->tk", "wx", (4, 3), (4, 3, 2)),
    "own_weights_for_each_position": ("td,tdk->tk", "xw", (4, 3), (4, 3, 2)),
    "two_contracted_axes": ("abt,cab->tc", "xw", (2, 3, 4), (5, 2, 3)),
    "outer": ("a,b->ab", "xw", (3,), (4,)),
    "outer_over_positions": ("ta,b->tab", "xw", (3, 2), (4,)),
    "full": ("abc,cab->", "xw", (2, 3, 2), (2, 2, 3)),
    "batch_twice": ("abtd,bade->abte", "xw", (2, 3, 2, 2), (3, 2, 2, 3)),
}
for name, arguments in EINSUMS.items():
    named(f"einsum_{name}", einsum_case(*arguments))
