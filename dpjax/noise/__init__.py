"""Random bits, Gaussian noise with its whole tail, and its release on a public grid.

Noise and sampling use the same bits: Threefry-2x32 with 20 rounds, evaluated at counters (Salmon
et al., Random123, 2011). No flag and no version of JAX changes them. docs/noise.md describes how
noise is made, and what it does and does not protect against.
"""

from dpjax.noise.bits import checked_key, fold, random_words, stream
from dpjax.noise.gaussian import SUPPORT, standard_normal
from dpjax.noise.grid import grid_unit, on_grid, release, sigma_gradient, white

__all__ = [
    "DEFINITION",
    "SUPPORT",
    "checked_key",
    "fold",
    "grid_unit",
    "on_grid",
    "random_words",
    "release",
    "sigma_gradient",
    "standard_normal",
    "stream",
    "white",
]

DEFINITION = "threefry2x32-boxmuller128-grid16"
"""Names how a key becomes noise. It changes whenever the same key would draw other noise."""
