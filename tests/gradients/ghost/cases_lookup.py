"""Embeddings and other lookups: ids repeated, out of range, along other axes, and scatters."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.gradients.ghost.registry import case, kernel, named, rows

IDS = np.array([[0, 2, 2, 2], [1, 1, 1, 1], [0, 1, 2, 4], [4, 3, 4, 3], [2, 0, 0, 2]])
OUTSIDE = np.array([[0, 9, 2, -1], [5, 5, 5, 5], [0, 1, -7, 4], [4, 3, 2, 1], [-1, -5, -6, 0]])


def taken_sum(x):
    """A loss in which every position of a lookup has its own cotangent."""
    weights = jnp.arange(1.0, 1 + x.size, dtype=x.dtype).reshape(x.shape)
    return jnp.sum(jnp.sin(x) * weights)


@case
def embedding_with_repeated_ids(rng):
    def loss(params, ids):
        return taken_sum(jnp.tanh(params["table"][ids]) @ params["w"])

    return loss, {"table": kernel(rng, 5, 3), "w": kernel(rng, 3, 2)}, IDS


@case
def embedding_then_mean(rng):
    """A bag of words: the positions share one cotangent."""

    def loss(params, ids):
        return jnp.sum(jnp.tanh(jnp.mean(params["table"][ids], axis=0) @ params["w"]))

    return loss, {"table": kernel(rng, 5, 3), "w": kernel(rng, 3, 2)}, IDS


def out_of_range(mode, **options):
    def build(rng):
        def loss(table, ids):
            return taken_sum(jnp.take(table, ids, axis=0, mode=mode, **options))

        return loss, kernel(rng, 5, 3), OUTSIDE

    return build


named("ids_out_of_range_filled", out_of_range("fill", fill_value=0.5))
named("ids_out_of_range_clipped", out_of_range("clip"))
named("ids_out_of_range_wrapped", out_of_range("wrap"))


@case
def one_id(rng):
    def loss(params, i):
        return jnp.sum(jnp.sin(params["table"][i] + params["table"][i, 1] + params["bias"][i]))

    return loss, {"table": kernel(rng, 5, 3), "bias": kernel(rng, 5)}, np.arange(5)


@case
def lookup_along_the_last_axis(rng):
    def loss(table, ids):
        return taken_sum(table[:, ids]) + taken_sum(table[jnp.array([1, 0])[:, None], ids[None, :]])

    return loss, kernel(rng, 3, 5), IDS


@case
def lookup_of_an_entry_in_each_row(rng):
    def loss(table, ids):
        return taken_sum(jnp.take_along_axis(table, ids[:, None], axis=1))

    return loss, kernel(rng, 4, 5), IDS


@case
def lookup_in_two_dimensions(rng):
    """Ids of any shape."""

    def loss(table, ids):
        return taken_sum(table[ids])

    return loss, kernel(rng, 5, 2), IDS.reshape(5, 2, 2)


@case
def slice_at_the_examples_place(rng):
    def loss(params, example):
        x, start = example
        window = jax.lax.dynamic_slice(params["w"], (start, 0), (2, 3))
        return taken_sum(window * x)

    return loss, {"w": kernel(rng, 5, 3)}, (rows(rng, 2, 3), np.array([0, 1, 2, 3, 9]))


@case
def parameter_written_into_the_data(rng):
    def loss(params, example):
        x, ids = example
        x = x.at[ids].add(params["added"])
        return taken_sum(x.at[0].set(params["set"]) @ params["w"])

    params = {"added": kernel(rng, 4, 3), "set": kernel(rng, 3), "w": kernel(rng, 3, 2)}
    return loss, params, (rows(rng, 5, 3), IDS)


@case
def data_written_into_the_parameter(rng):
    def loss(memory, example):
        x, i = example
        return taken_sum(memory.at[i].set(x))

    return loss, kernel(rng, 4, 3), (rows(rng, 3), np.array([0, 1, 3, 2, 1]))


@case
def one_hot_product(rng):
    def loss(table, ids):
        return taken_sum(jax.nn.one_hot(ids, 5, dtype=table.dtype) @ table)

    return loss, kernel(rng, 5, 3), IDS


@case
def tied_embedding_and_logits(rng):
    def loss(params, ids):
        table = params["table"]
        h = jnp.tanh(table[ids[:-1]] @ params["w"])
        scores = jax.nn.log_softmax(h @ table.T)
        return -jnp.sum(jnp.take_along_axis(scores, ids[1:, None], axis=1))

    return loss, {"table": kernel(rng, 5, 3), "w": kernel(rng, 3, 3)}, IDS


@case
def normalised_table(rng):
    """A non-isometric chain in front of a lookup."""

    def loss(table, ids):
        unit = table / jnp.linalg.norm(table, axis=1, keepdims=True)
        return taken_sum(unit[ids])

    return loss, rng.standard_normal((5, 3)), IDS
