"""The papers' figures. A new one is one file, and one row of `FIGURES`."""

from collections.abc import Mapping

from dpjax.cli.reproduce.figures import (
    clipped_norms,
    gradients,
    noise_decays,
    sensitivity,
    squared_error,
    thresholds,
)
from dpjax.cli.reproduce.figures.base import Figure, Sources

__all__ = ["FIGURES", "Figure", "Sources"]

FIGURES: Mapping[str, Figure] = {
    "lin-thresholds": thresholds.FIGURE,
    "dc-squared-error": squared_error.FIGURE,
    "dc-sensitivity": sensitivity.FIGURE,
    "clipped-norms": clipped_norms.FIGURE,
    "psasc-gradients": gradients.FIGURE,
    "noise-decays": noise_decays.FIGURE,
}
