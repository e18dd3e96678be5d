"""Figures computed from formulas alone: clipped norms of each rule, and noise decays."""

from typing import Any

import numpy as np

from dpjax.cli import figures
from dpjax.cli.figures import End
from dpjax.cli.papers.figures import Figure, Sources
from dpjax.papers.figures.clipped_norms import RuleCurve, rule_curves
from dpjax.papers.figures.noise_decays import DECAYS, NoiseDecay, noise_decay

__all__ = ["CLIPPED_NORMS", "NOISE_DECAYS"]

_NORMS = np.geomspace(1e-4, 1e2, 601)


def _draw_clipped_norms(sources: Sources) -> Any:
    del sources  # rules need no runs
    curves = rule_curves(_NORMS, 1.0)
    title = "What each rule makes of a gradient's norm, at C = 1"
    figure, body = figures.headed(
        12, 5.6, title, "Automatic Clipping, figure 4. Stripes: rules that are the same here"
    )
    clipped, weights = body.subplots(1, 2)
    _panel(clipped, curves, [curve.clipped for curve in curves])
    figures.tidy(clipped, "Clipped norm", "norm of the gradient", "norm of what enters the sum")
    clipped.set_ylim(3e-4, 1e2)
    _mark_bounds(clipped, curves)
    _panel(weights, curves, [curve.weights for curve in curves])
    figures.tidy(weights, "Weight", "norm of the gradient", "weight")
    weights.set_ylim(3e-3, 3e2)
    handles = clipped.get_lines()[: len(curves)]
    names = [_label(curve) for curve in curves]
    body.legend(handles, names, loc="outside lower left", ncols=3, frameon=False, handlelength=4)
    return figure


def _label(curve: RuleCurve) -> str:
    arguments = f" ({curve.arguments})" if curve.arguments else ""
    return f"{curve.name}{arguments}{'' if curve.bound is not None else ': no bound'}"


def _panel(axes: Any, curves: list[RuleCurve], values: list[np.ndarray]) -> None:
    colours = iter(figures.COLOURS)
    for curve, value in zip(curves, values, strict=True):
        style = {"color": figures.GREY, "linestyle": "-."} if curve.bound is None else None
        shown = np.where(value > 0, value, np.nan)  # a log axis cannot show a dropped gradient
        axes.loglog(curve.norms, shown, linewidth=1.8, **(style or {"color": next(colours)}))
    axes.set_xlim(_NORMS[0], _NORMS[-1])
    figures.stripe(axes.get_lines())


def _mark_bounds(axes: Any, curves: list[RuleCurve]) -> None:
    bounds = sorted({curve.bound for curve in curves if curve.bound is not None})
    for bound in bounds:
        axes.axhline(bound, color=figures.GREY, linewidth=0.9, linestyle=":", zorder=1)
    axes.figure.figure.draw_without_rendering()
    ends = [End(f"bound {bound:g}", _NORMS[-1], bound, figures.GREY) for bound in bounds]
    figures.label_ends(axes, ends, fontsize=9)


CLIPPED_NORMS = Figure(
    "clipped norm and weight of every rule (Automatic Clipping 4)", _draw_clipped_norms
)


def _draw_noise_decays(sources: Sources) -> Any:
    del sources  # schedules need no runs
    decays = [noise_decay(name) for name in DECAYS]
    title = "Auto DP-SGD's noise decays over 100 epochs, and what they cost"
    subtitle = r"Its figure 1. MNIST, batches of 64, $\sigma_0$ = 1, $\delta$ = 1e-5"
    subtitle += ". Above a hundred or so, RDP is far from tight"
    figure, body = figures.headed(12, 5.2, title, subtitle)
    noise, cost = body.subplots(1, 2)
    for decay, colour, marker in zip(decays, figures.COLOURS, "os^D", strict=False):
        _draw_decay(noise, cost, decay, {"color": colour, "marker": marker, "markersize": 4})
    figures.tidy(noise, "Noise multiplier", "epoch", r"$\sigma_e$ (std / bound)")
    noise.set_xlim(0, 100)
    noise.set_ylim(0, 1.05)
    figures.tidy(cost, "Privacy spent", "epochs trained", r"$\varepsilon$")
    cost.set_yscale("log")
    cost.set_xlim(0, 103)
    cost.plot([], [], "-", color=figures.GREY, label="at most, by RDP, with real clipping")
    cost.plot([], [], ":", color=figures.GREY, label="the paper's formula: no guarantee")
    for axes, place in ((noise, "outside lower left"), (cost, "outside lower right")):
        body.legend(*axes.get_legend_handles_labels(), loc=place, ncols=2, frameon=False)
    return figure


def _draw_decay(noise: Any, cost: Any, decay: NoiseDecay, style: dict[str, Any]) -> None:
    label = "linear (in truth geometric)" if decay.name == "linear" else decay.name
    epochs = np.arange(len(decay.sigmas))
    steps = {"drawstyle": "steps-post", "markevery": 10, "label": label}
    noise.plot(epochs, decay.sigmas, linewidth=1.9, **steps, **style)
    cost.plot(decay.epochs, decay.epsilons, linewidth=1.9, **style)
    cost.plot(decay.epochs, decay.printed, linestyle=":", linewidth=1.6, **style)


NOISE_DECAYS = Figure(
    "noise over epochs, and epsilon printed and true (Auto DP-SGD 1)", _draw_noise_decays
)
