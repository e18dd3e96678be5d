"""Parameters without compiling an initialisation, and functions that compile fast."""

import jax
import jax.numpy as jnp
import numpy as np

# Compilation is what these tests wait for; the results differ by rounding at most.
FAST = {"xla_backend_optimization_level": 0}


def fast_jit(function):
    return jax.jit(function, compiler_options=FAST)


def random_like(tree, seed=0):
    """Fills arrays with normal numbers of variance 1 / fan_in, and vectors of variance 1/4."""
    rng = np.random.default_rng(seed)

    def fill(leaf):
        scale = np.prod(leaf.shape[:-1]) ** -0.5 if len(leaf.shape) > 1 else 0.5
        return jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32)

    return jax.tree.map(fill, tree)


def random_params(network, seed=0):
    """Parameters of a network."""
    return random_like(jax.eval_shape(network.init, jax.random.key(0)), seed)
