"""The keys of a run: from one root, folded so that no two runs share their draws."""

import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import noise

__all__ = ["member_key", "next_lineage", "root_key"]


def root_key(seed: int | None = None) -> jax.Array:
    """Returns a threefry key: of a seed, or of 64 bits from the operating system's entropy.

    A seed is for reproduction: whoever knows it can subtract the noise.
    """
    if seed is None:
        words = np.frombuffer(os.urandom(8), np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    return jax.random.key(seed, impl="threefry2x32")


def member_key(root: jax.Array, lineage: str, member: int) -> jax.Array:
    """Returns the key of one run, from which its streams (sampling, noise, ...) are folded.

    It depends on what the run is. Otherwise two experiments with one seed would put the same noise
    on different signals, whose difference is then free of noise; and with the same batches, their
    composition would cost more than that of runs with batches of their own, which is what
    "all published" counts.

    Args:
        root: the root key.
        lineage: the experiment's identity, or `next_lineage` after a change on the way.
        member: which of several runs of the same experiment.
    """
    key = root
    for word in np.frombuffer(bytes.fromhex(lineage), np.uint32)[:4]:
        key = noise.fold(key, word)
    return noise.fold(key, member)


def next_lineage(lineage: str, identity: str, step: int) -> str:
    """Returns the lineage of a run that goes on from `step` as another experiment.

    It is new even if the experiment was run before: going back to an old configuration does not go
    back to its noise.

    >>> a, b = "00" * 32, "11" * 32
    >>> next_lineage(next_lineage(a, b, 5), a, 9) not in (a, b)
    True
    """
    return hashlib.sha256(f"{lineage} {identity} {step}".encode()).hexdigest()
