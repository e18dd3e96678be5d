"""The contract of adaptive thresholds."""

import math
from collections.abc import Iterator
from typing import Generic

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._contract import SLACK, log_strata, rebuilt_states, require, strata
from dpjax.testing.trials import (
    Point,
    check_record,
    check_rows,
    dense_norms,
    hostile_norms,
    searched,
    simplest,
)
from dpjax.thresholds import Threshold, ThresholdContext
from dpjax.thresholds.threshold import CEILING, FLOOR, State

__all__ = ["check_threshold"]

_HOSTILE = (0.0, 1.0, -1.0, 256.0, -256.0, 1e6, -1e6, 1e30, -1e30, np.inf, -np.inf, np.nan)
_WALKS, _STEPS = 8, 24
_MOST = 2**20  # numbers in one table of statistics


def check_threshold(
    threshold: Threshold[State],
    sigma: float = 1.0,
    expected_batch_size: float = 256.0,
    seed: int = 0,
) -> None:
    """Raises `ContractViolation` unless an adaptive threshold keeps its contract.

    The checks: the threshold is frozen and serialisable; sigma_S is above sigma; an example's
    statistic is the same alone and in batches of many sizes; every statistic, even of extreme
    norms, is finite and within the sensitivity; after any noisy sum (0, huge, negative, infinite,
    NaN) the threshold is finite and positive and the state keeps its shapes and dtypes; jit changes
    nothing.

    The statistic is checked at many norms (0 to 4 C in steps of 1e-3 C, 1e-10 to 1e10, extreme
    ones) in every state of eight walks. Plausible noisy sums, sums that keep pushing one way, and
    extreme sums drive the walks. If a state can be built for any threshold, thresholds from 1e-8 to
    1e8 in steps of 0.5% are checked too. If hypothesis is installed, it reports the simplest
    counterexample it finds.

    Args:
        threshold: the adaptive threshold.
        sigma: the total noise multiplier to check it with.
        expected_batch_size: B.
        seed: the seed of norms, thresholds, batch sizes and walks.

    Raises:
        ContractViolation: if the threshold breaks the contract.

    Example:
        >>> import dpjax
        >>> check_threshold(dpjax.thresholds.quantile(target=0.5))
    """
    rng = np.random.default_rng(seed)
    check_record(threshold)
    sigma_s = threshold.sigma_statistic(sigma, expected_batch_size)
    ok = sigma_s is not None and math.isfinite(sigma_s) and sigma_s > sigma
    require(ok, threshold, f"sigma_statistic({sigma}, {expected_batch_size}) is {sigma_s}")
    context = ThresholdContext(expected_batch_size, 1000, jnp.float32(sigma), float(sigma_s or 0))
    check = _CheckedThreshold(threshold, context, rng, seed)
    check.rows(check.init)
    check.statistic(check.init)
    check.hostile_sums()
    for walk in range(_WALKS):
        for state in check.walk(walk):
            check.statistic(state)
    check.rows(state)
    check.placed()


class _CheckedThreshold(Generic[State]):
    """One threshold under check: its compiled functions and random numbers."""

    def __init__(
        self,
        threshold: Threshold[State],
        context: ThresholdContext,
        rng: np.random.Generator,
        seed: int,
    ) -> None:
        self.threshold, self.context, self.rng, self.seed = threshold, context, rng, seed
        self.init = threshold.init()
        self.of = jax.jit(threshold.statistic)
        self.many = jax.jit(jax.vmap(threshold.statistic))
        self.update = jax.jit(threshold.update)
        shape = jax.eval_shape(threshold.statistic, np.ones(2, np.float32), self.init).shape
        require(
            len(shape) == 2 and shape[0] == 2, threshold, f"the statistic of 2 norms is {shape}"
        )
        self.width = shape[1]

    def rows(self, state: State) -> None:
        c = float(state.threshold)
        statistic = self.threshold.statistic
        check_rows(self.threshold, "statistic", lambda n: statistic(n, state), c, self.rng)

    def statistic(self, state: State) -> None:
        """Checks the statistics of many norms in one state."""
        norms = np.concatenate(
            [
                strata(self.rng, 0, 4, 4096) * float(state.threshold),
                dense_norms(self.rng)[self.rng.integers(4) :: 4],
                hostile_norms(),
            ]
        ).astype(np.float32)
        norms = norms[:: 1 + norms.size * self.width // _MOST]
        self._require_short(norms, np.asarray(self.of(norms, state), np.float64), state)

    def placed(self) -> None:
        """Checks the statistics of some norms at thresholds over the whole legal range."""
        simple = len(jax.tree.leaves(self.init)) == 1
        count = min(16384, 1 + _MOST // (32 * self.width)) if simple else 16
        wanted = log_strata(self.rng, FLOOR, CEILING, count)
        states = rebuilt_states(self.threshold, self.init, wanted)
        if not states:
            return
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
        c = np.asarray(stacked.threshold, np.float64)[:, None]
        ratios = np.concatenate([strata(self.rng, 0, 4, 24), log_strata(self.rng, 1e-9, 1e9, 8)])
        norms = (ratios * c).astype(np.float32)
        rows = np.asarray(self.many(norms, stacked), np.float64)
        for i in np.flatnonzero(~self._short(rows).all(1))[:1]:
            self._require_short(norms[i], rows[i], states[i])
        if simple:
            point = searched(self._violates, self.seed)
            state = None if point is None else self._state_at(point.c)
            if point is not None and state is not None:
                self._refuse(point.norm, state)

    def hostile_sums(self) -> None:
        """Checks the first update for sums that no batch can produce, with and without jit."""
        for size in _HOSTILE:
            for pattern in (np.ones(self.width), np.eye(self.width)[0], np.eye(self.width)[-1]):
                noisy = np.where(pattern > 0, size, 0.0).astype(np.float32)
                moved = self._moved(self.init, noisy)
            eager = self.threshold.update(self.init, jnp.asarray(noisy), self.context)
            same = np.allclose(eager.threshold, moved.threshold, rtol=1e-6)
            require(same, self.threshold, f"jit changes the update for a noisy sum of {size}")

    def walk(self, number: int) -> Iterator[State]:
        """Yields the states of one walk, starting from the first state."""
        rng, state = self.rng, self.init
        # Some sums push in the walk's own direction, so that the threshold goes far up and down.
        pushes = [np.ones(self.width), np.eye(self.width)[0], np.eye(self.width)[-1]]
        push = pushes[number // 2 % 3] * (-1) ** number * self.context.expected_batch_size
        pushing = True
        for _ in range(_STEPS):
            hostile = rng.random() < 0.05
            noisy = self._hostile_sum() if hostile else push if pushing else self._sum(state)
            state = self._moved(state, noisy.astype(np.float32))
            yield state
            pushing = rng.random() < (0.9 if pushing else 0.2)

    def _sum(self, state: State) -> np.ndarray:
        """Returns a noisy sum like those in training."""
        spread = 10.0 ** self.rng.normal(self.rng.uniform(-1, 1), 0.5, 64)
        norms = (float(state.threshold) * spread).astype(np.float32)
        rows = np.asarray(self.of(norms, state), np.float64)
        scale = self.context.sigma_statistic * self.threshold.sensitivity
        noise = scale * self.rng.standard_normal(self.width)
        return rows.mean(0) * self.context.expected_batch_size + noise

    def _hostile_sum(self) -> np.ndarray:
        size = 10.0 ** self.rng.uniform(-10, 38, self.width)
        signed = size * self.rng.choice([-1.0, 0.0, 1.0], self.width)
        rare = self.rng.random(self.width) < 0.1
        return np.where(rare, self.rng.choice([np.nan, np.inf, -np.inf], self.width), signed)

    def _moved(self, before: State, noisy: np.ndarray) -> State:
        after = self.update(before, noisy, self.context)
        cause = f"a noisy sum of {noisy[:3]}{'...' if noisy.size > 3 else ''}"
        kept = jax.tree.map(lambda x, y: x.shape == y.shape and x.dtype == y.dtype, before, after)
        require(
            all(jax.tree.leaves(kept)), self.threshold, f"the state changes its shape after {cause}"
        )
        c = float(after.threshold)
        require(math.isfinite(c) and c > 0, self.threshold, f"the threshold is {c} after {cause}")
        return after

    def _short(self, rows: np.ndarray) -> np.ndarray:
        finite = np.isfinite(rows).all(-1)
        lengths = np.linalg.norm(np.where(np.isfinite(rows), rows, 0.0), axis=-1)
        return finite & (lengths <= self.threshold.sensitivity * (1 + SLACK))

    def _require_short(self, norms: np.ndarray, rows: np.ndarray, state: State) -> None:
        places = np.flatnonzero(~self._short(rows))
        if places.size:
            c = float(state.threshold)
            near = np.abs(np.log(np.clip(norms[places] / c, 1e-30, 1e30)))
            self._refuse(float(norms[places[np.argmin(near)]]), state)

    def _refuse(self, norm: float, state: State) -> None:
        """Raises; reports the simplest violation if states can be built for any threshold."""
        if self._state_at(float(state.threshold)) is not None:
            first = Point(float(state.threshold), norm)
            if self._violates(first):
                simple = simplest(self._violates, first, self.seed)
                norm, state = simple.norm, self._state_at(simple.c) or state
        row = np.asarray(self.of(np.full(1, norm, np.float32), state), np.float64)[0]
        what = f"{np.linalg.norm(row):.9g} long" if np.isfinite(row).all() else "not finite"
        require(
            False,
            self.threshold,
            f"the statistic of norm {norm:.9g} at threshold {float(state.threshold):.9g} is "
            f"{what}, beyond the sensitivity {self.threshold.sensitivity:g}",
        )

    def _state_at(self, c: float) -> State | None:
        return next(iter(rebuilt_states(self.threshold, self.init, np.full(1, c))), None)

    def _violates(self, point: Point) -> bool:
        state = self._state_at(point.c)
        if state is None:
            return False
        row = np.asarray(self.of(np.full(1, point.norm, np.float32), state), np.float64)
        return not bool(self._short(row).all())
