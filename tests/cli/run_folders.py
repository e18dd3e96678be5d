"""Run folders written by hand, as the tests of figures and tables need them."""

import numpy as np

from dpjax import accounting
from dpjax.accounting import Ledger
from dpjax.methods.table import build_method
from dpjax.privatize import Released
from dpjax.sampling import Poisson
from dpjax.train.config import Experiment
from dpjax.train.folder import RunFolder, RunIdentity

STEPS, PER_EPOCH, SAMPLING = 12, 4, Poisson.with_rate(0.1)


def write_run(
    path,
    method="dp_sgd",
    *,
    sigma=1.5,
    accuracies=(0.2, 0.5, 0.75),
    thresholds=None,
    sampling=SAMPLING,
    ledger=True,
    data="digits",
    delta=1e-4,
    accountant="rdp",
    budget=None,
):
    """Writes a run of `STEPS` steps with an evaluation per epoch, and returns its folder."""
    privacy = {"delta": delta, "accountant": accountant}
    if budget is not None:
        privacy["epsilon"] = budget
    table = {"name": method, "noise_multiplier": sigma}
    plain = {"data": {"name": data}, "method": table, "privacy": privacy}
    folder = RunFolder(path)
    folder.create()
    folder.write_config(Experiment.from_plain(plain))
    folder.commit(RunIdentity("0" * 64))
    values = np.ones(STEPS) if thresholds is None else np.asarray(thresholds, float)
    bounds = values if values.ndim == 1 else np.linalg.norm(values, axis=1)
    sigmas = np.full(STEPS, float(sigma))
    folder.add_steps(0, 1, Released(values, bounds, sigmas, sigmas, np.zeros(STEPS)))
    built = build_method(table, {"steps_per_epoch": PER_EPOCH, "epochs": STEPS // PER_EPOCH})
    for epoch, accuracy in enumerate(accuracies, start=1):
        step = epoch * PER_EPOCH
        spent = accounting.epsilon(built, sampling, step, delta, accountant) if ledger else None
        row = {"step": step, "epoch": float(epoch), "accuracy": accuracy, "epsilon": spent}
        folder.add_released({**row, "threshold": values[step - 1].tolist(), "delta": delta})
    if ledger:
        folder.write_ledger(Ledger(data).add_steps(built, sampling, STEPS))
    return folder


def write_diagnostics(folder, evaluations=4):
    """Adds what a probe of three examples would have seen."""
    for i in range(evaluations):
        edges = np.geomspace(0.1 + i, 10 + i, 4).tolist()
        folder.add_diagnostics(
            {
                "step": PER_EPOCH * i,
                "examples": 3,
                "norms": {"edges": edges, "counts": [1, 2, 0]},
                "norm_quantiles": {"0.1": 0.5 + i, "0.5": 1.0 + i, "0.9": 2.0 + i},
                "clipped_fraction": 0.25 * i,
                "weights": {"norm": [0.5, 1.0, 2.0 + i], "weight": [1.0, 1.0, 1 / (2 + i)]},
                "mean_weight": 0.8,
                "loss": 1.0,
            }
        )


def png_size(path):
    """Returns width and height of a PNG, from its header (RFC 2083)."""
    with open(path, "rb") as file:
        head = file.read(24)
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def words_of(figure):
    """Returns all that is written in a figure."""
    from matplotlib.text import Text  # noqa: PLC0415

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def panel(figure, title):
    """Returns the panel with a title, or the one whose title begins so."""
    found = {axes.get_title("left"): axes for axes in figure.axes}
    if title in found:
        return found[title]
    (own,) = [axes for name, axes in found.items() if name.startswith(title)]
    return own


def data_of(lines):
    """Returns the points of lines, as lists."""
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]
