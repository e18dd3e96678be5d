"""The ghost engine in two backward passes: norms first, then the gradient of a weighted loss."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.convolutions import channels_last_convolutions
from dpjax.gradients.ghost.engine import GhostChunk, Weighted, Work
from dpjax.gradients.ghost.forms import Former, former, norms_of
from dpjax.gradients.ghost.mapping import over_examples
from dpjax.gradients.ghost.sites import Given
from dpjax.gradients.groups import GroupIndex
from dpjax.gradients.norms import accumulation_dtype
from dpjax.gradients.rows import Chunk, row_keys

__all__ = ["ghost_two_pass_engine"]


def ghost_two_pass_engine(
    loss_fn: Callable[..., jax.Array], params: Any, chunk: Chunk, key: Any
) -> GhostChunk:
    """Returns the chunk's norms, and ``grad(sum_i w_i loss_i)`` for the weighted sum.

    Nothing but the norms is kept from the first pass, for the least memory; the examples are passed
    over twice, and once more for each further group. The second pass rounds as an ordinary gradient
    does, not as the norms do: a contribution may exceed its bound by some 1e-6 of it.

    Args:
        loss_fn: the loss of one example, ``loss_fn(params, example)`` or with a key.
        params: where the gradients are taken; float32 or wider, since sums are in their dtype.
        chunk: the examples.
        key: None, or the key that is folded with each row's index.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if accumulation_dtype(leaf) != leaf.dtype:
            raise TypeError(
                f"params{jax.tree_util.keystr(path)} has dtype {leaf.dtype}: expected float32 or "
                "wider for engine='ghost_two_pass', which sums in the parameters' dtype"
            )
    work = Work.begun(loss_fn, params, chunk, key)
    norms: dict[int, jax.Array] = {}
    for block in work.blocks:
        given = work.given(block)
        if block.method == "gram":
            norms[block.leaves[0]] = work.gram(block, given)
        else:
            found = over_examples(_norms(former(block, work.leaves)), given, block.sites)
            norms.update({leaf: found[:, i] for i, leaf in enumerate(block.leaves)})
    data = (chunk.examples,) if key is None else (chunk.examples, row_keys(key, chunk))
    return work.chunk_of(norms, _second_pass(loss_fn, params, data))


def _norms(form: Former) -> Callable[[Sequence[Given]], jax.Array]:
    return lambda one: norms_of(form(one))


def _second_pass(loss_fn: Callable[..., jax.Array], params: Any, data: Any) -> Weighted:
    def gradient(weights: jax.Array, keep: jax.Array) -> list[jax.Array]:
        # What a row that is not kept holds could make its zero weight a NaN: another takes its
        # place. If none is kept, the sum is zero by definition.
        good = jnp.argmax(keep)

        def total(params: Any, data: Any) -> jax.Array:
            losses = jax.vmap(lambda *one: loss_fn(params, *one))(*data)
            return jnp.sum(losses * weights.astype(losses.dtype))

        grad = jax.grad(total)
        if jax.default_backend() == "cpu":
            grad = channels_last_convolutions(grad)
        found = grad(params, jax.tree.map(lambda leaf: _replaced(leaf, keep, good), data))
        return [jnp.where(jnp.any(keep), leaf, 0) for leaf in jax.tree.leaves(found)]

    def weighted(
        weights: jax.Array, norms: jax.Array, keep: jax.Array, groups: GroupIndex
    ) -> list[jax.Array]:
        passes = [gradient(weights[:, j], keep) for j in range(len(groups.names))]
        return [passes[j][i] for i, j in enumerate(groups.of_leaf)]

    return weighted


def _replaced(leaf: jax.Array, keep: jax.Array, good: jax.Array) -> jax.Array:
    return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, leaf[good])
