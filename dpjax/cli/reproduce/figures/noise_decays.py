"""Auto DP-SGD's noise over epochs, and its cost as printed and in truth."""

from typing import Any

import numpy as np

from dpjax.cli import figures
from dpjax.cli.reproduce.figures.base import Figure, Sources
from dpjax.reproduce.figures.noise_decays import DECAYS, Decay, noise_decay

__all__ = ["FIGURE"]


def _draw(sources: Sources) -> Any:
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


def _draw_decay(noise: Any, cost: Any, decay: Decay, style: dict[str, Any]) -> None:
    label = "linear (in truth geometric)" if decay.name == "linear" else decay.name
    epochs = np.arange(len(decay.sigmas))
    steps = {"drawstyle": "steps-post", "markevery": 10, "label": label}
    noise.plot(epochs, decay.sigmas, linewidth=1.9, **steps, **style)
    cost.plot(decay.epochs, decay.epsilons, linewidth=1.9, **style)
    cost.plot(decay.epochs, decay.printed, linestyle=":", linewidth=1.6, **style)


FIGURE = Figure("noise over epochs, and epsilon printed and true (Auto DP-SGD 1)", _draw)
