"""Methods with a fixed threshold: DP-SGD and the rules that replace its clipping."""

from typing import Any

from dpjax import rules
from dpjax.mechanism import Mechanism
from dpjax.methods.base import Method
from dpjax.schedules import FloatOrSchedule

__all__ = ["auto_s", "auto_v", "dp_sgd", "global_", "psac", "psasc"]


def dp_sgd(
    noise_multiplier: FloatOrSchedule, threshold: FloatOrSchedule = 1.0, groups: Any = None
) -> Method:
    """DP-SGD (Abadi et al. 2016): clip to `threshold`, add noise.

    >>> dp_sgd(noise_multiplier=1.0, threshold=0.5).mechanism
    Mechanism(rule=abadi(), threshold=0.5, noise_multiplier=1.0, groups=None)
    """
    return Method("dp_sgd", Mechanism(rules.abadi(), threshold, noise_multiplier, groups))


def auto_v(
    noise_multiplier: FloatOrSchedule, threshold: FloatOrSchedule = 1.0, groups: Any = None
) -> Method:
    """AUTO-V (Automatic Clipping): normalise every gradient."""
    return Method("auto_v", Mechanism(rules.auto_v(), threshold, noise_multiplier, groups))


def auto_s(
    noise_multiplier: FloatOrSchedule,
    gamma: float = 0.01,
    threshold: FloatOrSchedule = 1.0,
    groups: Any = None,
) -> Method:
    """AUTO-S (Automatic Clipping; NSGD is the same rule): normalise with a stability constant."""
    return Method("auto_s", Mechanism(rules.auto_s(gamma), threshold, noise_multiplier, groups))


def psac(
    noise_multiplier: FloatOrSchedule,
    r: float = 0.01,
    threshold: FloatOrSchedule = 1.0,
    groups: Any = None,
) -> Method:
    """DP-PSAC: a non-monotonous weight that stays bounded for vanishing gradients."""
    return Method("psac", Mechanism(rules.psac(r), threshold, noise_multiplier, groups))


def psasc(
    noise_multiplier: FloatOrSchedule,
    r: float = 0.01,
    s: float = 0.9,
    threshold: FloatOrSchedule = 1.0,
    groups: Any = None,
) -> Method:
    """DP-PSASC: PSAC with a scaling coefficient; its bound is threshold / s."""
    return Method("psasc", Mechanism(rules.psasc(r, s), threshold, noise_multiplier, groups))


def global_(
    noise_multiplier: FloatOrSchedule,
    z: float,
    threshold: FloatOrSchedule = 1.0,
    groups: Any = None,
) -> Method:
    """DP-SGD-Global (Bu et al. 2021): scale what is shorter than z alike, drop the rest."""
    return Method("global_", Mechanism(rules.global_clip(z), threshold, noise_multiplier, groups))
