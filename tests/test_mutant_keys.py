"""Keys that must differ: of seeds, of the streams of a run, and of its steps."""

from itertools import pairwise

import jax
import jax.numpy as jnp

from dpjax.noise import fold, stream
from dpjax.train.folder import member_key
from tests.train.small import experiment, program

STEPS = 5


def distinct(keys):
    keys = list(keys)
    return len({jax.random.key_data(key).tobytes() for key in keys}) == len(keys)


def test_every_seed_of_an_experiment_has_a_key_of_its_own():
    root, lineage = jax.random.key(1), experiment().identity
    assert distinct([root, *(member_key(root, lineage, member) for member in range(4))])
    assert not distinct(member_key(root, lineage, member) for member in (2, 2))  # can be told


def test_no_step_draws_its_batch_and_its_noise_from_one_key():
    """The keys as a run reads them: with one for both, the batch would tell the noise."""
    own = program()
    state = jax.jit(own.init)(jax.random.key(3))
    noise = state.opt_state[0].key
    at = [state._replace(step=jnp.int32(t)) for t in range(STEPS)]
    draws = [fold(stream(state.key, "sampling"), t) for t in range(STEPS)]
    noises = [fold(noise, t) for t in range(STEPS)]
    others = [stream(state.key, name) for name in ("init", "sampling", "augment")]
    assert distinct([*draws, *noises, *others, noise, state.key])
    batches = [own.draw(each).indices.tolist() for each in at]
    assert all(a != b for a, b in pairwise(batches))
