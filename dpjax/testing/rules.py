"""The contract of rules."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._contract import SLACK, broken_weight, log_strata, require, strata
from dpjax.mechanism import Mechanism
from dpjax.privatize import privatize
from dpjax.rules import Rule
from dpjax.testing.trials import (
    Point,
    check_record,
    check_rows,
    dense_norms,
    dense_ratios,
    hostile_norms,
    searched,
    simplest,
    some_thresholds,
)
from dpjax.thresholds.threshold import CEILING, FLOOR

__all__ = ["check_rule"]


def check_rule(rule: Rule, seed: int = 0) -> None:
    """Raises `ContractViolation`, naming what is broken and where, unless a rule is sound.

    The checks: the rule is frozen and serialisable; an example's weight is the same alone and in
    batches of many sizes; weights are finite and not negative for every norm (0, subnormal, huge,
    infinite), and 0 for +inf; ``weight * norm <= bound (1 + SLACK)`` in float64 at about a million
    points; jit changes nothing; groups broadcast; the sum over a batch equals a loop. The points
    are norms from 0 to 4 c in steps of 5e-4 c and from 1e-10 to 1e10 in steps of 0.3% at 32
    thresholds, and some norms at thresholds from 1e-8 to 1e8 in steps of 0.5%. If hypothesis is
    installed, it continues the search and reports the simplest counterexample it finds.

    Args:
        rule: the rule.
        seed: the seed of the points, which are random within their steps.

    Raises:
        ContractViolation: if the rule breaks the contract.

    Example:
        >>> import dpjax
        >>> check_rule(dpjax.rules.auto_s())
    """
    check_record(rule)
    _CheckedRule(rule, seed).everything()


class _CheckedRule:
    """One rule under check: its compiled functions and random numbers."""

    def __init__(self, rule: Rule, seed: int) -> None:
        self.rule, self.seed, self.rng = rule, seed, np.random.default_rng(seed)
        self.weight, self.bound = jax.jit(rule.weight), jax.jit(rule.bound)

    def everything(self) -> None:
        rule, rng = self.rule, self.rng
        for c in (1.0, float(log_strata(rng, FLOOR, CEILING, 1)[0])):
            check_rows(rule, "weight", partial(rule.weight, c=c), c, rng)
        thresholds = some_thresholds(rng, 32)
        everywhere = np.concatenate([dense_norms(rng), hostile_norms()])
        near = dense_ratios(rng)[:, None] * thresholds
        self.points(np.concatenate([near, everywhere[:, None] + 0 * thresholds]), thresholds)
        thresholds = some_thresholds(rng, 16384)
        ratios = np.concatenate([strata(rng, 0, 4, 24), log_strata(rng, 1e-18, 1e18, 8)])
        self.points(ratios[:, None] * thresholds, thresholds)
        self.jit()
        self.groups()
        self.batch_sum()
        found = searched(self._violates, self.seed)
        require(found is None, rule, "" if found is None else self._described(found))

    def points(self, norms: np.ndarray, c: np.ndarray) -> None:
        """Checks the weights of norms (N, K) at thresholds (K,)."""
        norms, c = norms.astype(np.float32), c.astype(np.float32)
        # One axis holds the rows of a batch, the other the groups.
        weights = np.asarray(self.weight(norms, c))
        bounds = np.broadcast_to(np.asarray(self.bound(c), np.float64), c.shape)
        sound = np.isfinite(bounds) & (bounds > 0)
        worst = int(np.argmin(sound))
        require(sound.all(), self.rule, f"bound({c[worst]:g}) is {bounds[worst]:g}")
        broken = broken_weight(norms, weights, bounds)
        if broken.any():
            rows, columns = np.nonzero(broken)
            # The threshold nearest to 1, and the norm nearest to that threshold.
            far = np.abs(np.log(np.clip(norms[rows, columns] / c[columns], 1e-30, 1e30)))
            worst = int(np.argmin(1e3 * np.abs(np.log(c[columns])) + far))
            point = Point(float(c[columns[worst]]), float(norms[rows[worst], columns[worst]]))
            if self._violates(point):
                point = simplest(self._violates, point, self.seed)
            require(False, self.rule, self._described(point))

    def jit(self) -> None:
        """Checks that jit changes nothing."""
        norms = hostile_norms()
        for c in (FLOOR, 1.0, CEILING):
            eager = np.asarray(self.rule.weight(jnp.asarray(norms), c), np.float64)
            same = np.allclose(eager, self.weight(norms, c), rtol=1e-5, atol=0)
            require(same, self.rule, f"jit changes a weight at c = {c}")

    def groups(self) -> None:
        """Checks that groups broadcast, each with its own norms and threshold."""
        norms = 10.0 ** self.rng.uniform(-2, 2, (6, 3)).astype(np.float32)
        c = 10.0 ** self.rng.uniform(-2, 2, 3).astype(np.float32)
        columns = np.stack([self.weight(norms[:, g], c[g]) for g in range(3)], axis=1)
        same = np.allclose(self.weight(norms, c), columns, rtol=1e-5)
        require(same, self.rule, "groups do not broadcast")
        bounds = np.broadcast_to(np.asarray(self.bound(c)), (3,))
        each = [float(self.rule.bound(float(x))) for x in c]
        require(np.allclose(bounds, each, rtol=1e-5), self.rule, "bound does not broadcast")

    def batch_sum(self) -> None:
        """Checks the sum over a batch against a loop."""
        rows = self.rng.normal(size=(33, 5)) * 10.0 ** self.rng.uniform(-3, 3, (33, 1))
        rows = rows.astype(np.float32)

        tx = privatize(Mechanism(self.rule, 1.0, noise_multiplier=0.0), 1, jax.random.key(0))
        params = jnp.zeros(5)
        total = jax.jit(lambda rows: tx.update(rows, tx.init(params), params)[0])(rows)
        norms = np.linalg.norm(rows.astype(np.float64), axis=1).astype(np.float32)
        weights = np.asarray([self.weight(n, np.float32(1)) for n in norms], np.float64)
        # In a step, the rule sees norms that are rounded up.
        room = 1e-4 * float(self.rule.bound(1.0))
        same = np.allclose(total, weights @ rows, rtol=1e-4, atol=room)
        require(same, self.rule, "the sum over a batch differs from a loop")

    def _violates(self, point: Point) -> bool:
        weight, bound = self._at(point)
        return bool(broken_weight(np.asarray(point.norm), weight, bound))

    def _at(self, point: Point) -> tuple[np.ndarray, np.ndarray]:
        c = np.float32(point.c)
        weight = np.asarray(self.weight(np.float32(point.norm), c), np.float64)
        return weight, np.asarray(self.bound(c), np.float64)

    def _described(self, point: Point) -> str:
        weight, bound = self._at(point)
        where = f"at norm {point.norm:.9g} and threshold {point.c:.9g}"
        if not np.isfinite(weight) or weight < 0 or not np.isfinite(point.norm):
            return f"the weight is {weight:.9g} {where}: expected a number >= 0, and 0 for +inf"
        length = weight * point.norm
        return f"weight * norm is {length:.9g} {where}, beyond {bound:.9g} by more than {SLACK:g}"
