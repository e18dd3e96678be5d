"""The table of cases: a name for each builder of (loss, parameters, rows)."""

from functools import cache

import numpy as np

from tests.gradients.ghost.contract import ROWS, Case

BUILDERS = {}


def case(build):
    """Enters a builder ``build(rng) -> (loss, params, batch)`` under its own name."""
    return named(build.__name__, build)


def named(name, build, **options):
    if name in BUILDERS:
        raise ValueError(f"two cases are called {name}")
    BUILDERS[name] = (build, options)
    return build


@cache
def get(name):
    """Builds a case, with numbers of its own: the same in every run."""
    build, options = BUILDERS[name]
    return Case(*build(np.random.default_rng(sum(map(ord, name)))), **options)


def rows(rng, *shape):
    """Normal rows of this shape."""
    return rng.standard_normal((ROWS, *shape))


def kernel(rng, *shape):
    """A normal parameter of this shape, with deviation fan_in^-1/2."""
    return rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[:-1])))
