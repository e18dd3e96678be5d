"""Parameters without compiling an initialisation, and functions that compile fast."""

import re

import jax
import jax.numpy as jnp
import numpy as np

# Compilation is what these tests wait for; the results differ by rounding at most.
FAST = {"xla_backend_optimization_level": 0}


def fast_jit(function):
    return jax.jit(function, compiler_options=FAST)


def random_like(tree, seed=0):
    """Fills kernels with deviation fan_in^-1/2, vectors with 1/4, scales and gains around 1."""
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        around = 1 if re.search(r"(scale|gain)\W*(value)?\W*$", jax.tree_util.keystr(path)) else 0
        deviation = np.prod(leaf.shape[:-1]) ** -0.5 if len(leaf.shape) > 1 else 0.25
        return jnp.asarray(around + deviation * rng.normal(size=leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, tree)


def random_params(network, seed=0):
    """Parameters of a network."""
    return random_like(jax.eval_shape(network.init, jax.random.key(0)), seed)
