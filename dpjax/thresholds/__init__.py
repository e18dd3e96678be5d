"""Thresholds that adapt through a private statistic, released jointly with the gradient.

Constants and schedules are passed to `dpjax.Mechanism` as they are; what is here has state.
"""

from dpjax.thresholds.dc_sgd_e import dc_sgd_e
from dpjax.thresholds.dc_sgd_p import dc_sgd_p
from dpjax.thresholds.global_z import global_z
from dpjax.thresholds.private_mean import private_mean
from dpjax.thresholds.quantile import quantile
from dpjax.thresholds.threshold import Threshold, ThresholdContext, ThresholdState

__all__ = [
    "Threshold",
    "ThresholdContext",
    "ThresholdState",
    "dc_sgd_e",
    "dc_sgd_p",
    "global_z",
    "private_mean",
    "quantile",
]
