"""Weight and clipped norm of every rule against the norm (Automatic Clipping, figure 4)."""

import inspect
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dpjax import rules
from dpjax.papers.auto_dp_sgd import auto_dp_sgd_as_printed
from dpjax.rules import Rule

__all__ = ["RuleCurve", "rule_curves", "shown_rules"]

# For rules without defaults, or whose defaults hide their effect.
_ARGUMENTS: dict[str, dict[str, float]] = {
    "global_clip": {"z": 10.0},
    "psac": {"r": 0.01},
    "psasc": {"r": 0.01, "s": 0.5},
}


class RuleCurve(NamedTuple):
    """A rule over norms.

    Attributes:
        name: the rule's name.
        arguments: its parameters, as text.
        norms: n.
        weights: w(n; C).
        bound: the bound on ``w n``; None if there is none.
    """

    name: str
    arguments: str
    norms: np.ndarray
    weights: np.ndarray
    bound: float | None

    @property
    def clipped(self) -> np.ndarray:
        """``w(n; C) n``, the length of a contribution."""
        return self.weights * self.norms


def shown_rules() -> dict[str, Rule]:
    """Returns an instance of every rule in `dpjax.rules`, by name.

    >>> list(shown_rules())[:3]
    ['abadi', 'auto_s', 'auto_v']
    """
    found: dict[str, Rule] = {}
    for name in rules.__all__:
        kind: Any = getattr(rules, name)
        if inspect.isclass(kind) and issubclass(kind, Rule) and kind is not Rule:
            found[name] = kind(**_ARGUMENTS.get(name, {}))
    return found


def rule_curves(norms: np.ndarray, threshold: float) -> list[RuleCurve]:
    """Returns the curves of every rule at some norms, and of Auto DP-SGD as printed.

    Args:
        norms: n, finite.
        threshold: C.
    """
    curves = [_curve(name, rule, norms, threshold) for name, rule in shown_rules().items()]
    printed = auto_dp_sgd_as_printed(noise_multiplier=1.0)
    weights = np.asarray(printed.weight(jnp.asarray(norms, jnp.float32)), np.float64)
    arguments = f"scale = {printed.scale:g}"
    return [*curves, RuleCurve("auto_dp_as_printed", arguments, norms, weights, None)]


def _curve(name: str, rule: Rule, norms: np.ndarray, threshold: float) -> RuleCurve:
    weights = np.asarray(rule.weight(jnp.asarray(norms, jnp.float32), threshold), np.float64)
    bound = float(rule.bound(threshold))
    plain = {key: value for key, value in rule.to_plain().items() if key != "kind"}
    arguments = ", ".join(f"{key} = {value:g}" for key, value in plain.items())
    return RuleCurve(name, arguments, norms, weights, bound)
