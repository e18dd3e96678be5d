"""Rules: the weight of one example's gradient from its norm n and threshold c, and its bound."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

SMALLEST_NORMAL_FLOAT32 = float(np.finfo(np.float32).tiny)


def weight(name: str, n: ArrayLike, c: float, **params: float) -> Array:
    """Weight of a gradient of norm n >= 0 under the named rule; 0 when n is not finite."""
    n = np.asarray(n, dtype=np.float64)
    finite = np.isfinite(n)
    return np.where(finite, _FORMULAS[name](np.where(finite, n, 1.0), c, **params), 0.0)


def bound(name: str, c: float, **params: float) -> float:
    """Least upper bound of weight(n) * n over n: c, or c/s for PSASC, or scale for Global-Adapt."""
    if name == "psasc":
        return c / params["s"]
    return params["scale"] if name == "global_adapt" else c


def _abadi(n: Array, c: float) -> Array:
    """min(1, c/n)."""
    return c / np.maximum(n, c)


def _auto_v(n: Array, c: float) -> Array:
    """c/n, and 0 at n = 0 and below the normal range of float32."""
    normal = n >= SMALLEST_NORMAL_FLOAT32
    return np.where(normal, c / np.where(normal, n, 1.0), 0.0)


def _auto_s(n: Array, c: float, gamma: float) -> Array:
    """c/(n + gamma)."""
    return c / (n + gamma)


def _nsgd(n: Array, c: float, r: float) -> Array:
    """c/(n + r)."""
    return c / (n + r)


def _psac(n: Array, c: float, r: float) -> Array:
    """c/(n + r/(n + r))."""
    return c / (n + r / (n + r))


def _psasc(n: Array, c: float, r: float, s: float) -> Array:
    """c/(s n + r/(n + r))."""
    return c / (s * n + r / (n + r))


def _global_clip(n: Array, c: float, z: float) -> Array:
    """c/z if n < z, else 0."""
    return np.where(n < z, c / z, 0.0)


def _global_adapt(n: Array, z: float, scale: float) -> Array:
    """scale * min(1/z, 1/n)."""
    return scale / np.maximum(n, z)


_FORMULAS = {
    "abadi": _abadi,
    "auto_v": _auto_v,
    "auto_s": _auto_s,
    "nsgd": _nsgd,
    "psac": _psac,
    "psasc": _psasc,
    "global_clip": _global_clip,
    "global_adapt": _global_adapt,
}
