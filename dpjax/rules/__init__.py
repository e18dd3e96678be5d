"""Rules: how much of one example's gradient enters the sum, with a proven bound on what enters.

A rule is a pure function of two scalars, the norm n of one example's gradient g and the threshold
c. The example contributes ``weight(n, c) * g``, which is never longer than ``bound(c)``.
"""

from dpjax.rules.abadi import abadi
from dpjax.rules.auto import auto_s, auto_v, nsgd
from dpjax.rules.global_adapt import global_adapt
from dpjax.rules.global_clip import global_clip
from dpjax.rules.psac import psac
from dpjax.rules.psasc import psasc
from dpjax.rules.rule import Rule, ratio

__all__ = [
    "Rule",
    "abadi",
    "auto_s",
    "auto_v",
    "global_adapt",
    "global_clip",
    "nsgd",
    "psac",
    "psasc",
    "ratio",
]
