"""Text from a causal language model: greedy, sampled, or by beam search, with cached keys."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp

from dpjax import _checks
from dpjax.models.gpt2 import NO_TOKEN, CausalNet
from dpjax.models.network import Network
from dpjax.models.parameters import Params
from dpjax.models.transformer import Memory

__all__ = ["generate"]

_Tree = TypeVar("_Tree")

# Finite, but far below any log-probability: a beam with this score is never chosen.
_NEVER = -1e9


def generate(
    network: Network,
    params: Params,
    prompts: chex.Array,
    *,
    steps: int,
    end: int,
    beams: int = 1,
    length_penalty: float = 1.0,
    temperature: float | None = None,
    top_k: int | None = None,
    key: chex.PRNGKey | None = None,
) -> jax.Array:
    """Continues prompts with a language model's tokens, in one jitted program.

    Without a temperature, each next token is the most likely one or, with several beams, the
    sequence is the best found by beam search. The score of a finished sequence is the sum of its
    tokens' log-probabilities over ``length ** length_penalty``, where the end token counts. The
    search stops when the best open beam, scored in the same way at its current length, is worse
    than all finished ones. These are the rules of `transformers` with ``early_stopping=False``.

    Args:
        network: a language model, such as `build("gpt2", ...)`.
        params: its parameters.
        prompts: (n, P) of tokens, padded with `NO_TOKEN` to length P.
        steps: the maximum number of new tokens.
        end: the token that ends a text.
        beams: the number of sequences that are kept.
        length_penalty: above 0 favours longer sequences.
        temperature: if given, divides the logits, and tokens are sampled; None for the most likely.
        top_k: samples only among this many most likely tokens; None for all.
        key: the key for sampling; needed with a temperature.

    Returns:
        (n, steps): the new tokens, including `end`, then `NO_TOKEN`.

    Raises:
        ValueError: if the network is not a language model, has too few positions or no such token,
            or a temperature comes without a key or with several beams.

    Example:
        >>> from dpjax.models import build
        >>> network = build("gpt2", (8,), 1, 11, layers=1, width=4, heads=2, positions=12)
        >>> params = network.init(jax.random.key(0))
        >>> generate(network, params, jnp.array([[5, 7], [3, -1]]), steps=3, end=0).shape
        (2, 3)
    """
    if not isinstance(jax.eval_shape(network.module, params), CausalNet):
        raise ValueError(f"network = {network.name}: expected a language model, such as gpt2")
    steps = _checks.integer("steps", steps, at_least=1)
    beams = _checks.integer("beams", beams, at_least=1)
    vocabulary = network.options["vocabulary"]
    if not 0 <= _checks.integer("end", end, at_least=0) < vocabulary:
        raise ValueError(f"end = {end}: expected less than the vocabulary of {vocabulary}")
    prompts = jnp.asarray(prompts)
    length = prompts.shape[1] + steps
    positions = network.options.get("positions", 1024)
    if length > positions:
        raise ValueError(
            f"steps = {steps} after prompts of {prompts.shape[1]}: expected at most {positions} "
            "together, the network's positions"
        )
    if temperature is not None:
        if key is None:
            raise ValueError("key = None: expected a key to draw tokens with a temperature")
        if beams > 1:
            raise ValueError(f"beams = {beams} with a temperature: expected 1")
        temperature = _checks.positive("temperature", temperature)
    if top_k is not None:
        top_k = min(_checks.integer("top_k", top_k, at_least=1), vocabulary)
    keys = jax.random.split(jax.random.key(0) if key is None else key, len(prompts))
    program = _searched if beams > 1 else _followed
    settings: dict[str, float | None] = (
        {"beams": beams, "length_penalty": float(length_penalty)}
        if beams > 1
        else {"temperature": temperature, "top_k": top_k}
    )
    return _batched(network, program, steps, end, tuple(settings.items()))(params, prompts, keys)


@functools.lru_cache(maxsize=16)
def _batched(
    network: Network,
    program: Callable[..., jax.Array],
    steps: int,
    end: int,
    settings: tuple[tuple[str, float | None], ...],
) -> Callable[[Params, jax.Array, jax.Array], jax.Array]:
    def one(params: Params, prompt: chex.Array, key: chex.PRNGKey) -> jax.Array:
        return program(network.module(params), prompt, key, steps=steps, end=end, **dict(settings))

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))


def _read(
    model: CausalNet, prompt: chex.Array, steps: int
) -> tuple[jax.Array, jax.Array, dict[str, Memory]]:
    """Returns the prompt's length, the logits after it, and its cached keys and values."""
    count = jnp.sum(prompt != NO_TOKEN)
    memory = model.empty_memory(len(prompt) + steps)
    # Positions after a shorter prompt are overwritten before they are attended to.
    logits, memory = model.step(prompt, memory, jnp.int32(0))
    return count, logits[count - 1], memory


class _Following(NamedTuple):
    done: chex.Array
    new: chex.Array
    logits: chex.Array
    memory: dict[str, Memory]
    count: chex.Array
    over: chex.Array


def _followed(
    model: CausalNet,
    prompt: chex.Array,
    key: chex.PRNGKey,
    *,
    steps: int,
    end: int,
    temperature: float | None,
    top_k: int | None,
) -> jax.Array:
    """Generates one token after another."""
    count, logits, memory = _read(model, prompt, steps)

    def chosen(logits: chex.Array, step: chex.Array) -> chex.Array:
        if temperature is None:
            return jnp.argmax(logits)
        scaled = logits / temperature
        if top_k is not None:
            least = jax.lax.top_k(scaled, top_k)[0][-1]
            scaled = jnp.where(scaled >= least, scaled, -jnp.inf)
        return jax.random.categorical(jax.random.fold_in(key, step), scaled)

    def advance(now: _Following) -> _Following:
        token = chosen(now.logits, now.done).astype(jnp.int32)
        new = now.new.at[now.done].set(token)
        logits, memory = model.step(token[None], now.memory, now.count + now.done)
        return _Following(now.done + 1, new, logits[0], memory, now.count, token == end)

    start = _Following(
        jnp.int32(0),
        jnp.full(steps, NO_TOKEN, jnp.int32),
        logits,
        memory,
        count,
        jnp.bool_(False),
    )
    last = jax.lax.while_loop(lambda now: ~now.over & (now.done < steps), advance, start)
    return last.new


class _BeamSearch(NamedTuple):
    """The open beams and the best finished sequences, each sorted from best to worst."""

    done: chex.Array
    new: chex.Array
    scores: chex.Array
    logits: chex.Array
    memory: dict[str, Memory]
    finished: chex.Array
    finished_scores: chex.Array
    is_finished: chex.Array
    may_improve: chex.Array
    may_continue: chex.Array


def _searched(
    model: CausalNet,
    prompt: chex.Array,
    key: chex.PRNGKey,
    *,
    steps: int,
    end: int,
    beams: int,
    length_penalty: float,
) -> jax.Array:
    """Returns the best sequence of a beam search."""
    del key
    count, logits, memory = _read(model, prompt, steps)
    vocabulary = logits.shape[0]

    def penalised(scores: chex.Array, length: chex.Array) -> chex.Array:
        return scores / jnp.asarray(length, jnp.float32) ** length_penalty

    def advance(now: _BeamSearch) -> _BeamSearch:
        total = jax.nn.log_softmax(now.logits) + now.scores[:, None]
        # Twice as many candidates as beams, since up to half of them may end here.
        scores, places = jax.lax.top_k(total.reshape(-1), 2 * beams)
        beam, token = places // vocabulary, (places % vocabulary).astype(jnp.int32)
        new = now.new[beam].at[:, now.done].set(token)
        ends = (token == end) | (now.done + 1 == steps)
        # Candidates that continue.
        open_scores, going = jax.lax.top_k(scores + ends * _NEVER, beams)
        # Candidates that end, if they are among the best, with those that ended before.
        counts = ends & (jnp.arange(2 * beams) < beams)
        ended = penalised(scores, now.done + 1) + (~now.may_improve) * _NEVER + ~counts * _NEVER
        all_scores = jnp.concatenate([now.finished_scores, ended])
        kept_scores, kept = jax.lax.top_k(all_scores, beams)
        finished = jnp.concatenate([now.finished, new])[kept]
        is_finished = jnp.concatenate([now.is_finished, counts])[kept]
        behind = jnp.where(is_finished, jnp.min(kept_scores), _NEVER)
        may_improve = now.may_improve & jnp.any(penalised(open_scores[0], now.done + 1) > behind)
        own = jax.tree.map(lambda leaf: leaf[beam[going]], now.memory)
        logits, memory = jax.vmap(lambda t, m: model.step(t[None], m, count + now.done))(
            token[going], own
        )
        return _BeamSearch(
            now.done + 1,
            new[going],
            open_scores,
            logits[:, 0],
            memory,
            finished,
            kept_scores,
            is_finished,
            may_improve,
            ~jnp.all(ends),
        )

    def copies(tree: _Tree) -> _Tree:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (beams, *leaf.shape)), tree)

    nothing = jnp.full((beams, steps), NO_TOKEN, jnp.int32)
    start = _BeamSearch(
        done=jnp.int32(0),
        new=nothing,
        # All beams start as the prompt, so only the first counts.
        scores=jnp.where(jnp.arange(beams) == 0, 0.0, _NEVER),
        logits=copies(logits),
        memory=copies(memory),
        finished=nothing,
        finished_scores=jnp.full(beams, _NEVER),
        is_finished=jnp.zeros(beams, bool),
        may_improve=jnp.bool_(True),
        may_continue=jnp.bool_(True),
    )
    last = jax.lax.while_loop(lambda now: now.may_improve & now.may_continue, advance, start)
    return last.finished[0]
