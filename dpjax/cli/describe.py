"""A setting as text and as plain data, which every accounting command prints first."""

from dataclasses import dataclass
from typing import Any

from dpjax.accounting.bound import rounded_up
from dpjax.cli.request import Request
from dpjax.sampling import FixedSize, FullBatch, TruncatedPoisson
from dpjax.thresholds import Threshold
from dpjax.train.plan import Setting

__all__ = ["Noise", "headed", "noise_of", "noise_text", "sampling_text", "setting_data"]


@dataclass(frozen=True)
class Noise:
    """The noise multipliers of a run; pairs are those of its first and its last step.

    Attributes:
        total: sigma, which is accounted.
        gradient: sigma_T, the gradient's own; None if there is no statistic, since it is then
            sigma, or if the statistic's noise depends on an unknown batch size.
        statistic: sigma_S of an adaptive threshold's statistic; None if there is none or it is
            unknown.
    """

    total: tuple[float, float]
    gradient: tuple[float, float] | None
    statistic: float | None


def noise_of(setting: Setting) -> Noise:
    """Returns the noise of a run; raises ValueError if the statistic's noise is too small."""
    mechanism = setting.mechanism
    sigma, ends = mechanism.noise_multiplier, (setting.start, setting.start + setting.steps - 1)
    if callable(sigma):
        total = tuple(float(mechanism.sigma(t)) for t in ends)
    else:
        total = (sigma or 0.0, sigma or 0.0)
    if _unknown(setting):
        return Noise((total[0], total[1]), None, None)
    first, last = (float(mechanism.sigma_gradient(t, setting.batch_size)) for t in ends)
    statistic = mechanism.sigma_statistic(setting.batch_size)
    return Noise((total[0], total[1]), (first, last), statistic)


def _unknown(setting: Setting) -> bool:
    """Returns whether the statistic's noise depends on an unknown batch size."""
    threshold = setting.mechanism.threshold
    if not isinstance(threshold, Threshold):
        return True
    return threshold.sigma_statistic(1.0, setting.batch_size) is None


def noise_text(setting: Setting) -> str:
    """Returns the noise as text, rounded up, so that a run with the printed noise costs no more."""
    noise = noise_of(setting)
    text = f"noise multiplier {_span(noise.total)}"
    if callable(setting.mechanism.noise_multiplier):
        text += f", {setting.mechanism.noise_multiplier!r}"
    if noise.gradient is not None and noise.statistic is not None:
        text += f" (sigma_T {_span(noise.gradient)}, sigma_S {rounded_up(noise.statistic, 6)})"
    elif setting.mechanism.adaptive:
        text += " (sigma_S follows the batch size; give --dataset-size)"
    return text


def _span(ends: tuple[float, float]) -> str:
    first, last = (rounded_up(value, 6) for value in ends)
    return first if first == last else f"{first} to {last}"


def headed(request: Request, setting: Setting) -> list[tuple[str, str]]:
    """Returns the setting as names and values for `dpjax.cli.printing.pairs`."""
    start = f", after {setting.start}" if setting.start else ""
    stopped = ", stopped by the budget" if setting.stopped_early else ""
    default = " (1/N, the default)" if request.delta_is_default else ""
    return [
        ("method", f"{setting.name}, {noise_text(setting)}"),
        ("sampling", sampling_text(setting)),
        ("steps", f"{setting.steps}{start}{stopped}"),
        ("delta", f"{rounded_up(setting.delta, 6)}{default}"),
    ]


def sampling_text(setting: Setting) -> str:
    """Returns how the batches are drawn, in words."""
    sampling = setting.sampling
    if isinstance(sampling, FullBatch):
        return "full batches"
    if isinstance(sampling, FixedSize):
        return f"{sampling.size} of {sampling.dataset_size}, without replacement"
    text = f"Poisson at rate {sampling.rate:.6g}"
    if setting.batch_size is not None:
        text += f" ({setting.batch_size:g} of {setting.dataset_size} expected)"
    if isinstance(sampling, TruncatedPoisson):
        text += f", cut at random to at most {sampling.max_size}"
    return text


def setting_data(request: Request, setting: Setting) -> dict[str, Any]:
    """Returns the setting as plain data."""
    noise = noise_of(setting)
    return {
        "method": setting.mechanism.to_plain(),
        "noise_multiplier": list(noise.total),
        "sigma_gradient": None if noise.gradient is None else list(noise.gradient),
        "sigma_statistic": noise.statistic,
        "sampling": setting.sampling.to_plain(),
        "steps": setting.steps,
        "stopped_early": setting.stopped_early,
        "epochs": setting.steps / setting.steps_per_epoch,
        "start": setting.start,
        "delta": setting.delta,
        "delta_is_default": request.delta_is_default,
        "relation": setting.relation,
    }
