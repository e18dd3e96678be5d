"""The expected squared error against C, and the C that DC-SGD picks from a private histogram."""

from typing import Any

import numpy as np

from dpjax import data, noise
from dpjax.cli import figures
from dpjax.cli.papers.figures import Figure, Sources
from dpjax.papers.figures.squared_error import (
    NoisyGradient,
    NormsOfRun,
    best_threshold,
    estimated_error,
    gradient_norms,
    noisy_histogram,
    percentile_thresholds,
    picked_thresholds,
    squared_error,
)
from dpjax.papers.printed_numbers import cell_named
from dpjax.papers.recipes import recipe_of
from dpjax.thresholds import dc_sgd_e
from dpjax.thresholds.histogram import default_sigma_h
from dpjax.train import Experiment
from dpjax.train.config import DIGITS
from dpjax.train.folder import NOT_PRIVATE

__all__ = ["FIGURE"]

_SYNTHETIC = NoisyGradient(sigma=1.0, dimension=100_000, batch_size=256)  # the paper's
_STEPS, _SETTLED = 120, 60
_EXAMPLES = 1024
_LINES = {"total": figures.COLOURS[6], "variance": figures.COLOURS[1], "bias": figures.COLOURS[0]}
_PICKED, _BEST = figures.COLOURS[2], figures.COLOURS[3]


def _draw(sources: Sources) -> Any:
    run = _real(sources)
    title = r"Expected squared error $E(C) = \sigma_T^2 C^2 d / B^2 + $mean max$(n_i - C, 0)^2$"
    subtitle = "DC-SGD, figures 2 to 4. Synthetic norms: B = 256, d = 100,000, " + r"$\sigma_T$ = 1"
    figure, body = figures.headed(12.5, 8.4, title, subtitle, banner=NOT_PRIVATE)
    panels = body.subplots(2, 3)
    generator = np.random.default_rng(0)
    normal = generator.normal(100, 20, 256)
    _draw_percentiles(panels[0, 0], normal)
    _draw_estimates(panels[0, 1], normal)
    _draw_error(panels[0, 2], "Normal norms: 100 ± 20", normal, _SYNTHETIC, 5.0)
    skewed = generator.lognormal(1.0, 1.0, 4096)
    _draw_error(panels[1, 0], "Log-normal norms: median 2.7", skewed, _SYNTHETIC, 5.0)
    sigma = float(run.plan.method.noise_multiplier)  # type: ignore[arg-type]
    sigma_h = default_sigma_h(sigma)
    own = float(noise.sigma_gradient(sigma, sigma_h))
    release = NoisyGradient(own, run.dimension, run.plan.batch_size)
    for axes, (step, norms) in zip(panels[1, 1:], run.norms.items(), strict=True):
        where = f"{run.plan.experiment.data.name}, {run.plan.experiment.model.name}"
        _draw_error(axes, f"{where}: step {step}", norms, release, sigma_h)
    handles, names = panels[1, 2].get_legend_handles_labels()
    body.legend(handles, names, loc="outside lower left", ncols=5, frameon=False)
    return figure


def _real(sources: Sources) -> NormsOfRun:
    """Returns the norms of gradients on MNIST, or on the embedded digits without a data folder."""
    experiment = DIGITS if sources.data_dir is None else _mnist()
    experiment = experiment.with_values({"privacy.epsilon": 8.0, "run.seed": 1})
    dataset = data.load(experiment.data.name, sources.data_dir)
    epoch = round(dataset.size / float(experiment.train.batch_size or 1))
    return gradient_norms(experiment, dataset, (0, epoch), _EXAMPLES)


def _mnist() -> Experiment:
    experiment = recipe_of(cell_named("dc-sgd/IV/mnist/cnn/4/dp-sgd")).experiment
    if experiment is None:
        raise RuntimeError("DC-SGD's MNIST cell has no experiment")
    return experiment.set("method.threshold", 1.0)


def _draw_error(
    axes: Any, title: str, norms: np.ndarray, release: NoisyGradient, sigma_h: float
) -> None:
    best = best_threshold(norms, release)
    picked = picked_thresholds(dc_sgd_e(), norms, release, sigma_h, _STEPS)[-_SETTLED:]
    thresholds = np.linspace(0, 2.6 * max(best, float(np.median(picked))), 200)
    error = squared_error(thresholds, norms, release)
    for name, values in {**error._asdict(), "total": error.total}.items():
        style = {"linewidth": 2.2} if name == "total" else {"linewidth": 1.5, "linestyle": "--"}
        axes.plot(thresholds, values, color=_LINES[name], label=name, **style)
    low, middle, high = np.quantile(picked, (0.1, 0.5, 0.9))
    axes.axvspan(low, high, color=_PICKED, alpha=0.2, linewidth=0)
    axes.axvline(middle, color=_PICKED, linewidth=1.6, label="DC-SGD-E picks (10% to 90%)")
    least = squared_error(np.array([best]), norms, release).total[0]
    axes.plot([best], [least], "D", color=_BEST, markersize=8, label="least error", zorder=5)
    title += f"\nleast at {best:.3g}, picked {middle:.3g}"
    figures.tidy(axes, title, "threshold $C$ (gradient norm)", "squared error")
    axes.set_xlim(0, thresholds[-1])
    axes.set_ylim(0, 2.2 * max(least, error.bias[0] / 2))


def _draw_percentiles(axes: Any, norms: np.ndarray) -> None:
    """Draws percentiles estimated by noisy histograms on [0, 150], as in the paper's figure 2."""
    fractions, upper = np.linspace(0.05, 0.95, 19), 150.0
    true = np.quantile(norms, fractions)
    axes.plot(fractions, true, color=_LINES["total"], linewidth=2.2, label="true")
    for i, (label, noisy) in enumerate(_noisy_histograms(norms, upper).items()):
        picked = percentile_thresholds(fractions, noisy, upper)
        axes.plot(fractions, picked, "o--", markersize=4, color=figures.COLOURS[i], label=label)
    figures.tidy(axes, "Normal norms: DC-SGD-P's threshold", "p", "threshold $C$ (gradient norm)")
    axes.legend(frameon=False, fontsize=9)


def _draw_estimates(axes: Any, norms: np.ndarray) -> None:
    """Draws the error estimated by noisy histograms on [0, 120], as in the paper's figure 3."""
    thresholds, upper = np.linspace(0, 120, 200), 120.0
    axes.plot(
        thresholds,
        squared_error(thresholds, norms, _SYNTHETIC).total,
        color=_LINES["total"],
        label="true",
        linewidth=2.2,
    )
    for i, (label, noisy) in enumerate(_noisy_histograms(norms, upper).items()):
        error = estimated_error(thresholds, noisy, upper, _SYNTHETIC)
        axes.plot(thresholds, error, "--", color=figures.COLOURS[i], linewidth=1.5, label=label)
    title = "Normal norms: the error by histograms"
    figures.tidy(axes, title, "threshold $C$ (gradient norm)", "squared error")
    axes.set_xlim(0, 120)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)


def _noisy_histograms(norms: np.ndarray, upper: float) -> dict[str, np.ndarray]:
    settings = ((20, 5.0), (20, 10.0), (10, 5.0))
    return {
        rf"$b$ = {bins}, $\sigma_H$ = {sigma_h:g}": noisy_histogram(norms, upper, bins, sigma_h, i)
        for i, (bins, sigma_h) in enumerate(settings)
    }


FIGURE = Figure("expected squared error against C (DC-SGD 2 to 4)", _draw)
