"""Public schedules of the threshold C_t and the noise multiplier sigma_t at step t = 0, 1, ..."""

import math
from collections.abc import Sequence


def epoch(t: int, batch_size: int, dataset_size: int) -> int:
    """floor(t B / N), in exact integers."""
    return t * batch_size // dataset_size


def yu_linear(t: int, init: float, steps: int) -> float:
    """C_0 / min(2, 1 + t/T)."""
    return init / min(2.0, 1.0 + t / steps)


def du_decay(t: int, init: float, rho: float, steps: int) -> float:
    """C_0 rho^(t/T), held at C_0 rho from t = T on."""
    return init * rho ** (min(t, steps) / steps)


def power_decay(t: int, init: float, exponent: float, B: int, N: int) -> float:
    """C_0 / (e + 1)^a, e = epoch from 0."""
    return init / (epoch(t, B, N) + 1) ** exponent


def table(t: int, values: Sequence[float], B: int, N: int) -> float:
    """values[e], e = epoch from 0, the last one held beyond the end."""
    return float(values[min(epoch(t, B, N), len(values) - 1)])


def geometric(t: int, init: float, rate: float, B: int, N: int) -> float:
    """sigma = sqrt(sigma_0^2 R^e)."""
    return math.sqrt(init**2 * rate ** epoch(t, B, N))


def time_decay(t: int, init: float, rate: float, B: int, N: int) -> float:
    """sigma = sqrt(sigma_0^2 / (1 + R e))."""
    return math.sqrt(init**2 / (1.0 + rate * epoch(t, B, N)))


def step_decay(t: int, init: float, rate: float, every: int, B: int, N: int) -> float:
    """sigma = sqrt(sigma_0^2 R^floor(e/D))."""
    return math.sqrt(init**2 * rate ** (epoch(t, B, N) // every))


def exponential_decay(t: int, init: float, rate: float, B: int, N: int) -> float:
    """sigma = sqrt(sigma_0^2 exp(-R e))."""
    return math.sqrt(init**2 * math.exp(-rate * epoch(t, B, N)))


def du_noise(t: int, sigma0: float, rho_mu: float, steps: int) -> float:
    """sigma_t = 1/mu_t with mu_t = rho_mu^(t/T) / sigma_0, held from t = T on."""
    return sigma0 / rho_mu ** (min(t, steps) / steps)
