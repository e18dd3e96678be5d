"""Non-private numbers about the gradients of a few training examples, for research only."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._states import find_state
from dpjax._toml import Table
from dpjax.mechanism import Mechanism
from dpjax.privatize import PrivatizeState
from dpjax.train.step import Examples, Program, TrainState

__all__ = ["PROBED", "Probe"]

PROBED = 512
_BINS = 40
_SHOWN = 200


class Probe:
    """Measures the gradients of the first training examples, without noise.

    Args:
        program: the program.
        examples: the training examples; the first `PROBED` are used.

    Privacy:
        None. Write what it returns only to files and plots that are marked as non-private.
    """

    def __init__(self, program: Program, examples: Examples) -> None:
        """Puts the probed examples on the device."""
        self._examples = jax.device_put(jax.tree.map(lambda leaf: leaf[:PROBED], examples))
        method = program.plan.method
        self._rule = method.rule if isinstance(method, Mechanism) else None

        def look(state: TrainState, examples: Examples) -> tuple[jax.Array, jax.Array]:
            grads = program.gradients_of(state)(state.params, examples)
            return grads.norms, grads.losses

        self._look = jax.jit(look)

    def __call__(self, state: TrainState) -> Table:
        """Returns norms, weights and losses at a state, as plain data."""
        norms, losses = (np.asarray(v, np.float64) for v in self._look(state, self._examples))
        finite = np.sort(norms[np.isfinite(norms)])
        found = {
            "step": int(state.step),
            "examples": len(norms),
            "loss": float(np.mean(losses)),
        }
        if not finite.size:
            return found
        if self._rule is None:
            return {**found, "norms": _histogram(finite), "norm_quantiles": _quantiles(finite)}
        threshold = self._threshold(state)
        weights = np.asarray(self._rule.weight(jnp.asarray(finite, jnp.float32), threshold))
        shown = np.unique(np.linspace(0, len(finite) - 1, _SHOWN).astype(int))
        return {
            **found,
            "norms": _histogram(finite),
            "norm_quantiles": _quantiles(finite),
            "clipped_fraction": float(np.mean(finite > threshold)),
            "mean_weight": float(np.mean(weights)),
            "weights": {"norm": finite[shown].tolist(), "weight": weights[shown].tolist()},
        }

    def _threshold(self, state: TrainState) -> float:
        """Returns the threshold on the flat norm; with groups, the root of the summed squares."""
        released = find_state(state.opt_state, PrivatizeState).released.threshold
        return float(np.linalg.norm(np.atleast_1d(np.asarray(released, np.float64))))


def _quantiles(norms: np.ndarray) -> dict[str, float]:
    return {str(q): float(np.quantile(norms, q)) for q in (0.1, 0.5, 0.9)}


def _histogram(norms: np.ndarray) -> dict[str, list[float]]:
    low, high = max(norms[0], 1e-12), max(norms[-1], 1e-11)
    edges = np.geomspace(low * 0.999, high * 1.001, _BINS + 1)
    counts, _ = np.histogram(np.clip(norms, low, None), edges)
    return {"edges": edges.tolist(), "counts": counts.tolist()}
