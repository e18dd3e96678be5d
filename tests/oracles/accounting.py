"""Privacy of compositions of (subsampled) Gaussians, from the divergences themselves.

sigma is always the noise's standard deviation over the L2 norm of one example's contribution, q the
probability of an example. One step's pair, with N(m) the normal of mean m and deviation sigma:
remove (1-q) N(0) + q N(1) against N(0), add the other way round, and replace-one
(1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import mpmath as mp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, optimize, special

Array = NDArray[np.float64]
Steps = Sequence[tuple[float, float, int]]

DIRECTIONS = {
    "add": ("add",),
    "remove": ("remove",),
    "add_or_remove_one": ("remove", "add"),
    "replace_one": ("replace_one",),
}
MESH = 2**20
NODES = 2**17
TAIL = 45.0  # -log of the mass that may be cut off or wrapped around
LARGEST_POWER = 3e3
LARGEST_REFINED_ORDER = 256


# Rényi divergences, in high precision.


def rdp_poisson_gaussian(q: float, sigma: float, order: float) -> float:
    """Larger Rényi divergence of the two directions, of any real order > 1.

    With r = 1 - q + q exp((2x - 1) / 2 sigma^2) they are log E[r^a] / (a - 1) and
    log E[r^(1-a)] / (a - 1), x ~ N(0): the trapezoidal rule, whose error is exponentially small in
    the ratio of the integrand's strip of analyticity (|Im x| < pi sigma^2) and the step.
    """
    with mp.workdps(50):
        q, s, a = mp.mpf(q), mp.mpf(sigma), mp.mpf(order)
        if q == 1:
            return float(a / (2 * s**2))
        h = min(s, mp.pi * s**2) / 16

        def log_moment(power: mp.mpf) -> mp.mpf:
            nodes = range(int((min(power, 0) - 20 * s) / h), int((max(power, 0) + 20 * s) / h) + 1)
            total = mp.fsum(
                mp.exp(-((k * h / s) ** 2) / 2)
                * (1 - q + q * mp.exp((2 * k * h - 1) / (2 * s**2))) ** power
                for k in nodes
            )
            return mp.log(total * h / (s * mp.sqrt(2 * mp.pi)))

        return float(max(log_moment(a), log_moment(1 - a)) / (a - 1))


def rdp_fixed_size_gaussian_bound(q: float, sigma: float, order: int) -> float:
    """Theorem 27 of Wang, Balle, Kasiviswanathan (2019), for draws of a fixed size, order >= 2.

    Here sigma is over the L2 distance of the two neighbours' sums. log(1 + sum_j C(a, j) q^j t_j)
    / (a - 1) over j = 2..a, where t_2 = min(4 (exp(rdp_2) - 1), 2 exp(rdp_2)) and t_j = min(4
    sqrt(B(2 floor(j/2)) B(2 ceil(j/2))), 2 exp((j-1) rdp_j)), B(l) = E[(r - 1)^l] the l-th forward
    difference at 0 of exp(k (k-1) / 2 sigma^2). Above order 256 only the second of each pair, as
    dp-accounting has it.
    """
    with mp.workdps(40 + int(order * (1 + math.log10(max(sigma, 1.0))))):
        q, s = mp.mpf(q), mp.mpf(sigma)
        if q == 1:
            return float(order / (2 * s**2))
        moments = [mp.exp(k * (k - 1) / (2 * s**2)) for k in range(order + 2)]
        refined = order <= LARGEST_REFINED_ORDER
        b, row = [], moments
        while refined and row:
            b.append(row[0])
            row = [after - before for before, after in pairwise(row)]
        total = 1 + mp.binomial(order, 2) * q**2 * min(4 * (moments[2] - 1), 2 * moments[2])
        for j in range(3, order + 1):
            term = 2 * moments[j]
            if refined:
                term = min(term, 4 * mp.sqrt(b[2 * (j // 2)] * b[2 * ((j + 1) // 2)]))
            total += mp.binomial(order, j) * q**j * term
        return float(mp.log(total) / (order - 1))


def rdp_to_epsilon(orders: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """min_a rdp_a + log(1 - 1/a) - log(delta a) / (a - 1), at least 0; orders > 1.

    Proposition 12 of Canonne, Kamath, Steinke (2020), arXiv:2004.00010.
    """
    a, r = np.asarray(orders, dtype=np.float64), np.asarray(rdp, dtype=np.float64)
    return max(0.0, float(np.min(r + np.log1p(-1 / a) - np.log(delta * a) / (a - 1))))


def repeat_and_select_geometric(orders: ArrayLike, rdp: ArrayLike, mean: float) -> Array:
    """RDP of the best of K runs, K geometric: theorem 2 of Papernot, Steinke (2022), eta = 1.

    rdp_a + log(mean) / (a - 1) + 2 min_b ((1 - 1/b) rdp_b + log(mean) / b), then the least over
    the orders >= a, since the divergence grows with its order.
    """
    a, r = np.asarray(orders, dtype=np.float64), np.asarray(rdp, dtype=np.float64)
    log_mean = math.log(mean)
    out = r + log_mean / (a - 1) + 2 * np.min((1 - 1 / a) * r + log_mean / a)
    return np.array([out[a >= order].min() for order in a])


# Epsilon and delta.


def epsilon_gaussian(mu: float, delta: float) -> float:
    """Root of Phi(mu/2 - eps/mu) - exp(eps) Phi(-mu/2 - eps/mu) = delta; 0 if delta is above."""
    with mp.workdps(40):
        m, target = mp.mpf(mu), mp.mpf(delta)

        def excess(eps: mp.mpf) -> mp.mpf:
            tail = mp.ncdf(m / 2 - eps / m) - mp.exp(eps) * mp.ncdf(-m / 2 - eps / m)
            return mp.log(tail / target)

        if excess(mp.mpf(0)) <= 0:
            return 0.0
        upper = m**2 / 2 + m * mp.sqrt(2 * mp.log(1 / target))
        return float(mp.findroot(excess, (0, upper), solver="anderson"))


def hockey_stick_composed(
    steps: Steps, epsilon: float, relation: str = "add_or_remove_one"
) -> float:
    """Smallest delta at epsilon of `count` steps of each (q, sigma, count), by the FFT.

    relation: add, remove, add_or_remove_one (the worse of the two) or replace_one. Good to 1e-6
    relative, for epsilon to 1e-5; not for the add direction with sigma < 0.3, where nearly all of
    the loss is an atom at its largest value.
    """
    return max(
        _hockey_stick(*_composed_loss(steps, direction, lambda k, t: k - t * epsilon), epsilon)
        for direction in DIRECTIONS[relation]
    )


def epsilon_composed(steps: Steps, delta: float, relation: str = "add_or_remove_one") -> float:
    """Smallest epsilon at delta, as `hockey_stick_composed`."""
    return max(_epsilon(steps, delta, direction) for direction in DIRECTIONS[relation])


def epsilon_of_mixture(
    parts: Sequence[tuple[float, float, float, str]], count: int, delta: float, t: float
) -> float:
    """Smallest epsilon at delta of `count` steps, each one of the parts, drawn in public.

    parts: (weight, q, sigma, direction). t is the tilt under which the losses are composed.
    """

    def cumulant(u: float) -> float:
        each = [math.log(w) + _log_mean_exp(q, s, way, u) for w, q, s, way in parts]
        return count * float(special.logsumexp(each))

    k, powers = cumulant(t), np.geomspace(0.02, 30.0, 40)
    high = min((cumulant(t + u) - k + 25) / u for u in powers)
    low = max((k - cumulant(t - u) - 25) / u for u in powers)
    h = (high - low) / MESH
    transform = np.zeros(MESH // 2 + 1, dtype=np.complex128)
    for w, q, s, way in parts:
        share = math.exp(math.log(w) + _log_mean_exp(q, s, way, t) - k / count)
        transform += share * fft.rfft(_on_grid(q, s, way, t, h))
    start = math.floor(low / h)
    masses = np.roll(fft.irfft(transform**count, MESH), -(start % MESH))
    losses = h * (start + np.arange(MESH))
    return _first_within(losses, masses * np.exp(k - t * losses), delta)


def _epsilon(steps: Steps, delta: float, direction: str) -> float:
    """From above, the first grid point where delta is passed, then exactly within that cell."""
    log_delta = math.log(delta)
    losses, masses = _composed_loss(steps, direction, lambda k, t: (k - log_delta) / t)
    return _first_within(losses, masses, delta)


def _first_within(losses: Array, masses: Array, delta: float) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        d1 = np.cumsum(masses[::-1])[::-1]
        d2 = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
        passed = np.flatnonzero(d1 - np.exp(losses) * d2 > delta)
    if not passed.size:
        return 0.0
    j = passed[-1] + 1
    return max(0.0, math.log((d1[j] - delta) / d2[j]))


def _hockey_stick(losses: Array, masses: Array, epsilon: float) -> float:
    """E[max(0, 1 - exp(eps - L))]."""
    above = losses > epsilon
    return float(np.sum(masses[above] * -np.expm1(epsilon - losses[above])))


def _composed_loss(steps: Steps, direction: str, objective) -> tuple[Array, Array]:
    """Grid of the composed privacy loss L, and its masses.

    The masses are composed under the tilt exp(t L) / E[exp(t L)] and the tilt is undone at the end,
    which keeps the relative accuracy far in the tail. t minimises the Chernoff bound that
    `objective` makes of the cumulant K(t) and t; L leaves the grid with probability exp(-TAIL) on
    each side under the tilt, by Chernoff's bound too.
    """

    def cumulant(t: float) -> float:
        return sum(n * _log_mean_exp(q, s, direction, t) for q, s, n in steps)

    t = math.exp(
        optimize.minimize_scalar(
            lambda u: objective(cumulant(math.exp(u)), math.exp(u)),
            bounds=(-4, 8),
            method="bounded",
        ).x
    )
    k = cumulant(t)
    variance = sum(n * _tilted_variance(q, s, direction, t) for q, s, n in steps)
    powers = np.minimum(np.geomspace(0.1, 20.0, 24) / math.sqrt(variance), LARGEST_POWER)
    high = min((cumulant(t + u) - k + TAIL) / u for u in powers)
    low = max((k - cumulant(t - u) - TAIL) / u for u in powers)
    h = (high - low) / MESH
    transform = np.ones(MESH // 2 + 1, dtype=np.complex128)
    for q, s, n in steps:
        transform *= fft.rfft(_on_grid(q, s, direction, t, h)) ** n
    start = math.floor(low / h)
    masses = np.roll(fft.irfft(transform, MESH), -(start % MESH))
    losses = h * (start + np.arange(MESH))
    with np.errstate(over="ignore", invalid="ignore"):
        return losses, masses * np.exp(k - t * losses)


def _log_pair(q: float, sigma: float, direction: str, x: Array) -> tuple[Array, Array]:
    """Logarithms of the two densities of the pair at x."""
    with np.errstate(divide="ignore"):
        log_q, log_rest = math.log(q), np.log1p(-q)
    base = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    plus = base + np.logaddexp(log_rest, log_q + (2 * x - 1) / (2 * sigma**2))
    if direction == "replace_one":
        return plus, base + np.logaddexp(log_rest, log_q - (2 * x + 1) / (2 * sigma**2))
    return (plus, base) if direction == "remove" else (base, plus)


def _tilted(
    q: float, sigma: float, direction: str, t: float, points: int
) -> tuple[Array, Array, float]:
    """Privacy loss and log of the (unnormalised) mass P exp(t L) dx at nodes x, and log of all."""
    reach = 2 * abs(t) + 1 + 12 * sigma
    needed = math.ceil(8 * reach / min(sigma, math.pi * sigma**2))
    x, dx = np.linspace(-reach, reach, max(points, needed), retstep=True)
    p, q_ = _log_pair(q, sigma, direction, x)
    log_mass = p + t * (p - q_) + math.log(dx)
    return p - q_, log_mass, float(special.logsumexp(log_mass))


def _log_mean_exp(q: float, sigma: float, direction: str, t: float) -> float:
    """log E_P[exp(t L)]."""
    return _tilted(q, sigma, direction, t, 2)[2]


def _tilted_variance(q: float, sigma: float, direction: str, t: float) -> float:
    """Variance of L under the tilt."""
    loss, log_mass, log_total = _tilted(q, sigma, direction, t, 2)
    mass = np.exp(log_mass - log_total)
    return float(np.sum(mass * (loss - np.sum(mass * loss)) ** 2))


def _on_grid(q: float, sigma: float, direction: str, t: float, h: float) -> Array:
    """One step's tilted loss on the grid of step h, modulo its length.

    Each node's mass goes to the three nearest grid points by quadratic interpolation, which
    preserves mass, mean and variance.
    """
    loss, log_mass, log_total = _tilted(q, sigma, direction, t, NODES)
    keep = log_mass - log_total > -TAIL - 20
    mass, position = np.exp(log_mass[keep] - log_total), loss[keep] / h
    nearest = np.rint(position)
    f, index = position - nearest, nearest.astype(np.int64)
    out = np.zeros(MESH)
    for shift, weight in ((-1, f * (f - 1) / 2), (0, 1 - f**2), (1, f * (f + 1) / 2)):
        out += np.bincount((index + shift) % MESH, weights=mass * weight, minlength=MESH)
    return out
