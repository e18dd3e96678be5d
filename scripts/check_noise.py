"""Checks the distribution of the noise, its largest values, and the grid it is released on.

    python scripts/check_noise.py [--draws 1e9]

Draws noise through `tx.update` and counts values beyond 4, 5, 5.5 and 6 sigma, next to those of
`jax.random.normal`; computes the distribution of the map from bits to normals; counts the outputs
that are possible for only one of two neighbouring sums; and finds bits that lead to each output
within 11 sigma. It does not check the bits themselves or how keys are derived:
`tests/test_release.py` does. Takes about a minute for 1e9 draws on two cores.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats

import dpjax
from dpjax import noise
from dpjax.noise import gaussian

BEYOND = (4.0, 5.0, 5.5, 6.0)
_SIZE = 2**22  # numbers per draw


def tail_counts(draw: Callable[[jax.Array], jax.Array], draws: int) -> np.ndarray:
    """Returns how many of the draws are beyond each of `BEYOND`, on either side.

    Args:
        draw: ``draw(t) -> (k,)`` standard normals of step t.
        draws: the number of draws; a multiple of k.
    """
    limits = jnp.asarray(BEYOND)
    counted = jax.jit(lambda t: jnp.sum(jnp.abs(draw(t))[:, None] > limits, axis=0))
    each = jax.eval_shape(draw, jnp.int32(0)).shape[0]
    total = np.zeros(len(BEYOND), np.int64)
    for t in range(draws // each):
        total += np.asarray(counted(jnp.int32(t)), np.int64)
    return total


def through_update(size: int = _SIZE, seed: int = 0) -> Callable[[jax.Array], jax.Array]:
    """Returns the noise that `tx.update` releases for an empty batch at step t, over sigma."""
    mechanism = dpjax.Mechanism(dpjax.rules.abadi(), 1.0, 1.0)
    tx = optax.chain(dpjax.privatize(mechanism, 1.0, jax.random.key(seed)))
    params = jnp.zeros(size)
    state = tx.init(params)

    def draw(t: jax.Array) -> jax.Array:
        at = jax.tree.map(
            lambda s: s._replace(step=t) if isinstance(s, dpjax.PrivatizeState) else s,
            state,
            is_leaf=lambda s: isinstance(s, dpjax.PrivatizeState),
        )
        empty = jnp.zeros((1, size))
        return tx.update(empty, at, params, mask=jnp.zeros(1))[0]

    return draw


def jax_normal(size: int = _SIZE, seed: int = 0) -> Callable[[jax.Array], jax.Array]:
    """Returns what most libraries use: `jax.random.normal` in float32."""
    return lambda t: jax.random.normal(jax.random.fold_in(jax.random.key(seed), t), (size,))


def expected_counts(draws: int, unit: float = 1 / 16) -> np.ndarray:
    """Returns the Gaussian's expected counts beyond `BEYOND`, for values rounded to a grid.

    For t on the grid, a rounded value is beyond t if it is beyond ``t + unit / 2`` before rounding.
    """
    return draws * 2 * scipy.stats.norm.sf(np.asarray(BEYOND) + unit / 2)


def plausible(counts: np.ndarray, expected: np.ndarray, confidence: float = 1e-4) -> np.ndarray:
    """Returns for each count whether it is plausible for a Poisson variable with this mean."""
    low, high = scipy.stats.poisson.interval(1 - confidence, expected)
    return (counts >= low) & (counts <= high)


Normal = Callable[[jax.Array, jax.Array], jax.Array]
Output = Callable[..., jax.Array]


def normal_of_words(radius: jax.Array, angle: jax.Array) -> jax.Array:
    """The library's map from three words of radius and one of angle to normals, in float32."""
    return gaussian.normal_of_words((radius[0], radius[1], radius[2]), angle, jnp.dtype("float32"))


def tail_of_the_map(
    limits: np.ndarray, normal: Normal = normal_of_words, angles: int = 2**13
) -> np.ndarray:
    """Returns ``P(Z > t)`` of the map from bits to normals, for each t >= 0."""
    below = np.asarray(limits, np.float32)
    below = np.where(below > limits, np.nextafter(below, np.float32(0)), below)  # no float between
    return _mean_over_angles(normal, _itself, below, angles=angles)


def _itself(z: jax.Array) -> jax.Array:
    return z


def cell_errors(
    total: float, std: float, angles: int = 2**13
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the centres of the cells up to 5 sigma on one side, their Gaussian probabilities, r.

    Args:
        total: the sum, divided by `std`.
        std: the standard deviation of the noise.
        angles: the number of angles.
    """
    high, low = halves(total * std)
    scale = jnp.float32(std)
    unit, exact = float(noise.grid_unit(scale)), float(high) + float(low)
    k = math.floor(exact / unit) + np.arange(1, 1 + math.ceil(5 * std / unit))
    points = (k * unit).astype(np.float32)
    edges = ((k + 0.5) * unit - exact) / float(scale)
    gaussian = -np.diff(scipy.stats.norm.sf(edges))
    given = (high, low, scale)
    tails = _mean_over_angles(normal_of_words, _released, points, *given, angles=angles)
    return (edges[1:] + edges[:-1]) / 2, gaussian, -np.diff(tails) / gaussian - 1


def _released(z: jax.Array, high: jax.Array, low: jax.Array, std: jax.Array) -> jax.Array:
    return on_the_grid(high, low, std * z, std)


def _mean_over_angles(
    normal: Normal, output: Output, limits: np.ndarray, *given: jax.Array, angles: int
) -> np.ndarray:
    """Returns the probability of an output beyond each limit, for limits above the middle.

    For each angle, the radii that lead there are those with u below a limit, which `_radii` finds.
    The probability is the mean over the angles.
    """
    # The midpoints of strips of equal width: for a smooth periodic function, their mean is the
    # integral. The low bits are random, so that the rounding of g is sampled too.
    g = (np.arange(angles) + 0.5) / angles
    low_bits = np.random.default_rng(0).integers(0, 2**9, angles, np.uint32)
    angle = jnp.asarray(((g * 2**31).astype(np.uint32) ^ low_bits) << 1)[None]
    found, any_radius = _radii(normal, output, angle, jnp.asarray(limits)[:, None], *given)
    words = np.asarray(found, np.float64)
    u = words[0] * 2.0**-32 + words[1] * 2.0**-64 + (words[2] + 1) * 2.0**-96
    return np.where(any_radius, u, 0.0).mean(axis=1) / 2  # half of the bits have the other sign


@partial(jax.jit, static_argnames=("normal", "output"))
def _radii(
    normal: Normal, output: Output, angle: jax.Array, limits: jax.Array, *given: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the largest radius words, (3, ...), that lead beyond the limits, and whether any do.

    By bisection over the 96 bits; if any words lead beyond a limit, the first ones do.

    Args:
        normal: maps words to normals.
        output: ``output(z, *given)``, non-decreasing in z.
        angle: the words of the angle, with positive sign.
        limits: the limits of the output.
        given: further arguments of `output`.
    """

    def beyond(radius: jax.Array) -> jax.Array:
        return output(normal(radius, angle), *given) > limits

    def body(i: jax.Array, words: jax.Array) -> jax.Array:
        bit = jnp.uint32(1) << (jnp.uint32(31) - (i % 32).astype(jnp.uint32))
        trial = words | jnp.where(jnp.arange(3)[:, None, None] == i // 32, bit, jnp.uint32(0))
        return jnp.where(beyond(trial), trial, words)

    any_radius = beyond(jnp.zeros((3, 1, 1), jnp.uint32))
    start = jnp.zeros((3, *any_radius.shape), jnp.uint32)
    return jax.lax.fori_loop(0, 96, body, start), any_radius


Release = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""From the halves of a sum, the noise and its standard deviation to an output, in float32."""


def on_the_grid(high: jax.Array, low: jax.Array, added: jax.Array, std: jax.Array) -> jax.Array:
    """This library's release."""
    return noise.on_grid(high, low, added, noise.grid_unit(std))


def plain_sum(high: jax.Array, low: jax.Array, added: jax.Array, std: jax.Array) -> jax.Array:
    """What most libraries release: the float32 sum."""
    return high + (low + added)


Halves = tuple[jax.Array, jax.Array]


def halves(total: float) -> Halves:
    """Returns a sum as the two floats that represent it."""
    high = np.float32(total)
    return jnp.float32(high), jnp.float32(total - float(high))


def impossible(release: Release, pairs: np.ndarray, std: float, draws: int = 2**16) -> np.ndarray:
    """Returns, for each pair of sums, the fraction of one's outputs that the other cannot produce.

    An output y of S is impossible for S' if no float32 number n gives S' + n = y as computed, where
    y - S' and its neighbours are tried. `unreached` checks which of them the sampler can draw.

    Args:
        release: the release, as computed in float32.
        pairs: (p, 2) sums S and S', divided by `std`.
        std: the standard deviation of the noise.
        draws: the number of noise draws for each pair.
    """
    scale = jnp.float32(std)
    added = scale * noise.standard_normal(jax.random.key(1), jnp.zeros(draws))
    fractions = [
        _impossible(release, halves(one * std), halves(other * std), added, scale)
        for one, other in pairs
    ]
    return np.asarray(fractions)


@partial(jax.jit, static_argnames="release")
def _impossible(
    release: Release, one: Halves, other: Halves, added: jax.Array, scale: jax.Array
) -> jax.Array:
    y = release(*one, added, scale)
    near = (y - other[0]) - other[1]
    trials = [near]
    for direction in (-jnp.inf, jnp.inf):
        step = near
        for _ in range(4):
            step = jnp.nextafter(step, jnp.float32(direction))
            trials.append(step)
    found = jnp.stack([release(*other, trial, scale) == y for trial in trials])
    return jnp.mean(~jnp.any(found, axis=0))


def unreached(
    total: float, std: float, normal: Normal = normal_of_words, reach: float = 11.0
) -> float:
    """Returns the fraction of grid points near a sum for which no bits of the sampler are found.

    For each grid point within reach, `_radii` inverts the map from bits to normals at the required
    noise, for a random angle, and the release is computed with the normal of these bits.

    Args:
        total: the sum, divided by `std`.
        std: the standard deviation of the noise.
        normal: the sampler's map from words to normals.
        reach: the distance from the sum, in standard deviations.
    """
    high, low = halves(total * std)
    scale = jnp.float32(std)
    unit = float(noise.grid_unit(scale))
    exact = float(high) + float(low)
    points = unit * (np.round(exact / unit) + np.arange(-2 * 16 * 12, 2 * 16 * 12 + 1))
    points = np.unique(points.astype(np.float32))  # coarser for a sum beyond 2^24 units
    needed = (points.astype(np.float64) - exact) / float(scale)
    inside = np.abs(needed) <= reach
    # Repeated to a fixed length, so that one program serves all sums.
    points, needed = (np.resize(x[inside], 768) for x in (points, needed))
    g = np.random.default_rng(0).uniform(0.95, 1.0, needed.size)
    angle = jnp.asarray((g * 2**31).astype(np.uint32) << 1)[None]
    limits = jnp.asarray(np.abs(needed), jnp.float32)[None]
    words, _ = _radii(normal, _itself, angle, limits)
    signed = angle | jnp.asarray(needed < 0, jnp.uint32)
    y = _released_at(normal(words, signed)[0], high, low, scale)
    return float(np.mean(np.asarray(y) != points))


_released_at = jax.jit(_released)


# Sums over sigma. As float64 numbers they have a low half, except for the powers of two.
PAIRS = np.array(
    [
        [0.0, 1.0],
        [1.0, 0.0],
        [0.1, 0.7],
        [1000.3, 1001.3],
        [-3.7, -2.9],
        [2.0**-20, 1.0],
        [7.0, 8.0],
        [3e6 + 0.1, 3e6 + 0.9],
        [-5e7 + 0.3, -5e7 + 1.2],
    ]
)
STDS = (1.0, 0.77, 3.1e-4, 2.5e6)


def _rms(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sqrt(np.average(values**2, weights=weights)))


def main() -> None:
    """Runs the checks and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=float, default=1e9, help="how many (1e9)")
    draws = math.ceil(parser.parse_args().draws / _SIZE) * _SIZE
    print(f"Noise: {noise.DEFINITION}")
    print(f"largest |z|: {noise.SUPPORT:.3f}\n")

    print("P(Z > t) of the map from bits to normals, over the Gaussian's")
    limits = np.array([0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10.5, 11, 11.3, 11.5])
    for t, ratio in zip(limits, tail_of_the_map(limits) / scipy.stats.norm.sf(limits), strict=True):
        print(f"  t = {t:4.1f}   1 {ratio - 1:+.1e}")
    print("\nr of the grid's cells up to 5 sigma (cells of sigma / 16 to sigma / 32)")
    for total, std in ((0.0, 1.0), (0.3, 1.0), (0.0, 0.77), (0.3, 0.77), (7.3, 1.9)):
        z, mass, r = cell_errors(total, std)
        print(f"  S = {total} sigma, sigma {std}: rms by mass {_rms(r, mass):.1e}, ", end="")
        print(f"unweighted {_rms(r, np.ones_like(r)):.1e}, at most {np.abs(r).max():.1e}, ", end="")
        print(f"sum of mass r z {np.sum(mass * r * z):+.1e}")
    print()

    print(f"{draws:.0e} draws beyond t sigma (either side; expected of a Gaussian on the grid)")
    sources = {"tx.update": (through_update(), 1 / 16), "jax.random.normal": (jax_normal(), 0.0)}
    for name, (draw, unit) in sources.items():
        counts, expected = tail_counts(draw, draws), expected_counts(draws, unit)
        verdict = plausible(counts, expected)
        for t, count, mean, good in zip(BEYOND, counts, expected, verdict, strict=True):
            word = "plausible" if good else "REJECTED"
            print(f"  {name:18s} t = {t:3.1f}  {count:8d}  expected {mean:10.1f}  {word}")
    print("\noutputs that one of two neighbouring sums cannot give")
    releases = {"on the grid": on_the_grid, "plain float32 sum": plain_sum}
    for name, release in releases.items():
        worst = max(float(impossible(release, PAIRS, std).max()) for std in STDS)
        print(f"  {name:18s} up to {worst:.1%} of outputs")
    lost = max(unreached(float(total), std) for total in PAIRS[:, 1] for std in STDS)
    print(f"grid points within 11 sigma that no bits were found for: {lost:.1%}")
    missing = math.erfc(noise.SUPPORT / math.sqrt(2))
    print(f"\nP(|Z| > {noise.SUPPORT:.2f}), which is missing: {missing:.1e}")


if __name__ == "__main__":
    main()
