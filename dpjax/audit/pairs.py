"""Neighbouring pairs for one release: the same gradients with and without the canary's."""

from dataclasses import dataclass

import numpy as np

__all__ = ["DIMENSION", "PAIRS", "ROWS", "TURNING", "Pair", "lineup_like", "random_pairs"]

ROWS = 4
"""The rows of a batch: the canary comes last, other examples or padding before it."""

DIMENSION = 8
"""The number of parameters, in two leaves of four."""

_EVERYWHERE = np.full(DIMENSION, DIMENSION**-0.5, np.float32)
_OPPOSED = _EVERYWHERE * np.repeat([1, -1], DIMENSION // 2).astype(np.float32)
_FIRST, _SECOND = np.eye(2, DIMENSION, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Pair:
    """A canary and the other examples of its batch.

    Attributes:
        name: describes the pair.
        others: gradients of the other examples, (k, d) with k < `ROWS`; the same at every step.
        canary: the canary's gradient at each step, (T, d).

    Example:
        >>> pair = Pair("alone", np.zeros((0, DIMENSION)), np.ones((1, DIMENSION)))
        >>> pair.repeated(3).steps, pair.mask().tolist()
        (3, [0.0, 0.0, 0.0, 0.0])
    """

    name: str
    others: np.ndarray
    canary: np.ndarray

    def repeated(self, steps: int) -> "Pair":
        """Returns a pair of one step, watched for `steps` steps.

        Args:
            steps: T, the number of steps.
        """
        return Pair(self.name, self.others, np.repeat(self.canary, steps, axis=0))

    @property
    def steps(self) -> int:
        """T, the number of steps for which the pair is watched."""
        return len(self.canary)

    def batches(self) -> np.ndarray:
        """Returns the gradients of all rows at each step, (T, rows, d); unused rows are zero."""
        found = np.zeros((self.steps, ROWS, DIMENSION), np.float32)
        found[:, : len(self.others)] = self.others
        found[:, -1] = self.canary
        return found

    def mask(self) -> np.ndarray:
        """Returns 1 for the rows of the other examples, 0 for unused rows and for the canary."""
        return (np.arange(ROWS) < len(self.others)).astype(np.float32)


def _alone(name: str, canary: np.ndarray) -> Pair:
    return Pair(name, np.zeros((0, DIMENSION), np.float32), canary[None])


def random_pairs(rng: np.random.Generator, steps: int, count: int = 4) -> list[Pair]:
    """Returns canaries alone in their batch, with random directions and norms from 0.1 to 30.

    Args:
        rng: draws norms and directions.
        steps: the number of steps for which they are watched.
        count: the number of pairs.
    """
    found = []
    for _ in range(count):
        direction = rng.standard_normal(DIMENSION)
        norm = np.exp(rng.uniform(np.log(0.1), np.log(30)))
        canary = (norm / np.linalg.norm(direction) * direction).astype(np.float32)
        found.append(_alone(f"alone, random, norm {norm:.3g}", canary).repeated(steps))
    return found


def lineup_like(pair: Pair) -> list[Pair]:
    """Returns the canaries that an attack must tell apart: two per parameter, one up, one down.

    Each has the norm of the pair's canary and lies along one axis.
    """
    lengths = np.linalg.norm(pair.canary.astype(np.float64), axis=1)
    return [
        Pair(
            f"{pair.name}, along an axis",
            pair.others,
            np.outer(lengths, sign * axis).astype(np.float32),
        )
        for axis in np.eye(DIMENSION)
        for sign in (1, -1)
    ]


def _in_company(name: str, canary: np.ndarray) -> Pair:
    return Pair(name, np.stack([_FIRST, 0.5 * _FIRST, 0.1 * _SECOND]), canary[None])


PAIRS = (
    # Just below the threshold: a rule that drops longer gradients gives these their largest weight.
    *(_alone(f"alone, norm {n:g}", 0.9999 * n * _EVERYWHERE) for n in (0.03, 0.3, 1, 2, 3, 5, 10)),
    _alone("alone, huge", 1e4 * _EVERYWHERE),
    # Noise that is shared between leaves cancels along these.
    *(_alone(f"alone, opposed leaves, norm {n:g}", 0.9999 * n * _OPPOSED) for n in (1, 3)),
    _alone("alone, opposed leaves, huge", 1e4 * _OPPOSED),
    _alone("alone, zero", np.zeros(DIMENSION, np.float32)),
    _in_company("against others, huge", -1e4 * _FIRST),
    _in_company("with others, small", 0.03 * _SECOND),
    _in_company("with others, not a number", np.full(DIMENSION, np.nan, np.float32)),
    _in_company("with others, beyond float32", np.full(DIMENSION, 3e38, np.float32)),
)
"""Pairs of one step. Thresholds start at 1, so norms are in units of the first threshold."""

TURNING = Pair("alone, turning round", PAIRS[0].others, np.stack([_EVERYWHERE, -_EVERYWHERE]))
"""A canary whose gradient changes sign: if noise repeats, the difference of two steps has none."""
