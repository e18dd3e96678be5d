"""Checks the noise as a sceptic would: its law, its largest values, and the grid it is released on.

    python scripts/check_noise.py [--draws 1e9]

Draws noise through `tx.update` and counts what lies beyond 4, 5, 5.5 and 6 sigma, beside
`jax.random.normal`; computes the law of the map from bits to normals; and counts the outputs that
are possible for one of two neighbouring sums only. Takes about a minute for 1e9 draws on two cores.
"""

import argparse
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats

import dpjax
from dpjax import noise

BEYOND = (4.0, 5.0, 5.5, 6.0)
_SIZE = 2**22  # numbers in one draw


def tail_counts(draw: Callable[[jax.Array], jax.Array], draws: int) -> np.ndarray:
    """Returns how many of the draws lie beyond each of `BEYOND`, on either side.

    Args:
        draw: ``draw(t) -> (k,)`` standard normals of step t.
        draws: how many; a multiple of k.
    """
    limits = jnp.asarray(BEYOND)
    counted = jax.jit(lambda t: jnp.sum(jnp.abs(draw(t))[:, None] > limits, axis=0))
    each = jax.eval_shape(draw, jnp.int32(0)).shape[0]
    total = np.zeros(len(BEYOND), np.int64)
    for t in range(draws // each):
        total += np.asarray(counted(jnp.int32(t)), np.int64)
    return total


def through_update(size: int = _SIZE, seed: int = 0) -> Callable[[jax.Array], jax.Array]:
    """Returns the noise that leaves `tx.update` for an empty batch at step t, over sigma."""
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
    """Returns what most libraries draw: `jax.random.normal` in float32."""
    return lambda t: jax.random.normal(jax.random.fold_in(jax.random.key(seed), t), (size,))


def expected_counts(draws: int, unit: float = 1 / 16) -> np.ndarray:
    """Returns the Gaussian's expected counts beyond `BEYOND`, of values rounded to a grid.

    A value is beyond t on the grid when it is beyond ``t + unit / 2`` before rounding, for t on it.
    """
    return draws * 2 * scipy.stats.norm.sf(np.asarray(BEYOND) + unit / 2)


def plausible(counts: np.ndarray, expected: np.ndarray, confidence: float = 1e-4) -> np.ndarray:
    """Says for each count whether a Poisson variable of this mean may show it."""
    low, high = scipy.stats.poisson.interval(1 - confidence, expected)
    return (counts >= low) & (counts <= high)


def tail_of_the_map(limits: np.ndarray, angles: int = 2**13, seed: int = 0) -> np.ndarray:
    """Returns ``P(Z > t)`` of the map from bits to normals, for each t >= 0.

    For an angle, the radii that lead beyond t are those with u below some limit: bisection over the
    96 bits finds it through the library's own float32 map. The mean over angles is P.
    """
    rng = np.random.default_rng(seed)
    # The middles of equally wide strips: for a smooth periodic function their mean is the integral.
    # Random low bits, so that the rounding of g is sampled too.
    g = (np.arange(angles) + 0.5) / angles
    bits = (g * 2**31).astype(np.uint32) ^ rng.integers(0, 2**9, angles, np.uint32)
    angle = jnp.asarray(bits << 1)[None]
    limits = jnp.asarray(limits, jnp.float32)[:, None]

    def with_bit(words: jax.Array, i: jax.Array) -> jax.Array:
        bit = jnp.uint32(1) << (jnp.uint32(31) - (i % 32).astype(jnp.uint32))
        return words | jnp.where(jnp.arange(3)[:, None, None] == i // 32, bit, jnp.uint32(0))

    @jax.jit
    def search(angle: jax.Array) -> jax.Array:
        def body(i: jax.Array, words: jax.Array) -> jax.Array:
            trial = with_bit(words, i)
            z = noise.normal_of_words((trial[0], trial[1], trial[2]), angle, jnp.dtype("float32"))
            return jnp.where(z > limits, trial, words)

        start = jnp.zeros((3, limits.shape[0], angle.shape[1]), jnp.uint32)
        return jax.lax.fori_loop(0, 96, body, start)

    words = np.asarray(search(angle), np.float64)
    u = words[0] * 2.0**-32 + words[1] * 2.0**-64 + words[2] * 2.0**-96
    return u.mean(axis=1) / 2  # half of the bits have the other sign


def impossible(
    release: Callable[[jax.Array, jax.Array], jax.Array], pairs: np.ndarray, draws: int = 2**16
) -> np.ndarray:
    """Returns, for each pair of sums, the fraction of one's outputs that the other cannot give.

    An output y of S is impossible for S' if no noise n is in reach with S' + n = y as computed:
    y - S' and its neighbours in float32 are tried as the noise.

    Args:
        release: ``release(sum, noise) -> output``, as computed in float32.
        pairs: (p, 2) sums S and S'.
        draws: of the noise, for each.
    """
    z = jax.random.key(1)
    z = noise.standard_normal(z, jnp.zeros(draws))

    @jax.jit
    def fraction(s: jax.Array, other: jax.Array) -> jax.Array:
        y = release(s, z)
        near = y - other
        trials = [near]
        for direction in (-jnp.inf, jnp.inf):
            step = near
            for _ in range(4):
                step = jnp.nextafter(step, jnp.float32(direction))
                trials.append(step)
        found = jnp.stack([release(other, trial) == y for trial in trials])
        return jnp.mean(~jnp.any(found, axis=0))

    return np.asarray([fraction(jnp.float32(a), jnp.float32(b)) for a, b in pairs])


def on_the_grid(total: jax.Array, z: jax.Array) -> jax.Array:
    """The release of this library, for noise of standard deviation 1."""
    return noise.on_grid(total, jnp.zeros_like(total), z, noise.grid_unit(1.0))


def plain_sum(total: jax.Array, z: jax.Array) -> jax.Array:
    """What most libraries release: the float32 sum."""
    return total + z


PAIRS = np.array(
    [
        [0.0, 1.0],
        [1.0, 0.0],
        [0.1, 0.7],
        [1000.3, 1001.3],
        [-3.7, -2.9],
        [2.0**-20, 1.0],
        [7.0, 8.0],
    ]
)


def main() -> None:
    """Prints the checks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=float, default=1e9, help="how many (1e9)")
    draws = math.ceil(parser.parse_args().draws / _SIZE) * _SIZE
    print(f"Noise: {noise.DEFINITION}")
    print(f"largest |z|: {noise.SUPPORT:.3f}\n")

    print("P(Z > t) of the map from bits to normals, over the Gaussian's")
    limits = np.array([0.5, 1, 2, 3, 4, 5, 6, 7, 8])
    for t, ratio in zip(limits, tail_of_the_map(limits) / scipy.stats.norm.sf(limits), strict=True):
        print(f"  t = {t:3.1f}   1 {ratio - 1:+.1e}")
    edges = (np.arange(0, 80) + 0.5) / 16
    tails = tail_of_the_map(edges)
    r = np.diff(tails) / np.diff(scipy.stats.norm.sf(edges)) - 1
    print(f"cells of sigma / 16 up to 5 sigma: r rms {np.sqrt(np.mean(r**2)):.1e}, ", end="")
    print(f"at most {np.abs(r).max():.1e}\n")

    print(f"{draws:.0e} draws beyond t sigma (either side; expected of a Gaussian on the grid)")
    sources = {"tx.update": (through_update(), 1 / 16), "jax.random.normal": (jax_normal(), 0.0)}
    for name, (draw, unit) in sources.items():
        counts, expected = tail_counts(draw, draws), expected_counts(draws, unit)
        verdict = plausible(counts, expected)
        for t, count, mean, good in zip(BEYOND, counts, expected, verdict, strict=True):
            word = "plausible" if good else "REJECTED"
            print(f"  {name:18s} t = {t:3.1f}  {count:8d}  expected {mean:10.1f}  {word}")
    print("\noutputs that one of two neighbouring sums cannot give (sigma = 1)")
    for name, release in {"on the grid": on_the_grid, "plain float32 sum": plain_sum}.items():
        worst = impossible(release, PAIRS).max()
        print(f"  {name:18s} up to {worst:.1%} of outputs")
    mass = math.erfc(noise.SUPPORT / math.sqrt(2))
    print(f"\nP(|Z| > {noise.SUPPORT:.2f}), which is missing: {mass:.1e}")


if __name__ == "__main__":
    main()
