"""The numbers behind the figures that need no training: rules, decays, stored runs."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from dpjax.papers import Store
from dpjax.papers.figures.clipped_norms import rule_curves
from dpjax.papers.figures.noise_decays import DECAYS, noise_decay
from dpjax.papers.figures.sensitivity import SERIES, sensitivity_of, sensitivity_runs
from dpjax.papers.outcome import greedy_curve, threshold_curves
from dpjax.papers.printed_numbers import training_size
from dpjax.papers.recipe import SEARCH_SEED
from dpjax.papers.recipes.lin import search_for
from dpjax.train import resolve
from tests.papers.stores import DC_SGD, EPOCHS, LIN, add_run, add_table, full_store

EPOCH = np.arange(100)
# Auto DP-SGD's table 1 (variances), at sigma_0 = 1 and E = 100.
VARIANCES = {
    "linear": 0.99**EPOCH,
    "time": 1 / (1 + EPOCH / 100),
    "step": 0.5 ** (EPOCH // 10),
    "exponential": np.exp(-0.1 * EPOCH),
}
# Its appendix D, for M = 60,000 and B = 64.
PRINTED = {"linear": 0.2429, "time": 0.2268, "step": 0.1874, "exponential": 9.9943}


@pytest.mark.parametrize("name", DECAYS)
def test_decays_are_the_papers(name):
    decay = noise_decay(name, every=100)
    np.testing.assert_allclose(decay.sigmas, np.sqrt(VARIANCES[name]), rtol=2e-5)
    assert decay.epochs.tolist() == [100]
    assert decay.printed[-1] == pytest.approx(PRINTED[name], abs=1e-4)
    assert decay.epsilons[-1] > 2 * decay.printed[-1]


def test_the_true_epsilon_is_that_of_dp_accounting():
    decay = noise_decay("time", 2.0, 1000, 50, epochs=4, every=2)
    for after, found in zip((2, 4), decay.epsilons, strict=True):
        accountant = rdp.RdpAccountant()
        for epoch in range(after):
            sigma = 2.0 / np.sqrt(1 + 2.0 / 4 * epoch)
            one = dp_accounting.GaussianDpEvent(float(sigma))
            accountant.compose(dp_accounting.PoissonSampledDpEvent(0.05, one), 20)
        assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


def test_every_rule_against_its_formula():
    n = np.geomspace(1e-3, 1e2, 41)
    formulas = {
        "abadi": (np.minimum(1, 2 / n), 2.0),
        "auto_dp_as_printed": (np.ones_like(n), None),
        "auto_s": (2 / (n + 0.01), 2.0),
        "auto_v": (2 / n, 2.0),
        "global_adapt": (1 / np.maximum(2, n), 1.0),
        "global_clip": (np.where(n < 10, 0.2, 0.0), 2.0),
        "psac": (2 / (n + 0.01 / (n + 0.01)), 2.0),
        "psasc": (2 / (0.5 * n + 0.01 / (n + 0.01)), 4.0),
    }
    curves = {curve.name: curve for curve in rule_curves(n, 2.0)}
    assert set(curves) == set(formulas)
    for name, (weights, bound) in formulas.items():
        np.testing.assert_allclose(curves[name].weights, weights, rtol=1e-5)
        np.testing.assert_allclose(curves[name].clipped, weights * n, rtol=1e-5)
        assert curves[name].bound == bound
        if bound is not None:
            assert curves[name].clipped.max() <= bound * (1 + 1e-6)
    assert curves["psasc"].arguments == "r = 0.01, s = 0.5"


def test_thresholds_of_stored_runs(tmp_path):
    store = full_store(tmp_path)
    for cells in (LIN, DC_SGD):
        curves = threshold_curves(cells, store)
        for i, cell in enumerate(cells):
            curve = curves[cell.method]
            assert curve.epochs.tolist() == [1, 2, 3, 4]
            expected = [(i + seed) / curve.epochs for seed in (1, 2)]
            np.testing.assert_allclose(curve.thresholds, expected)
    (transfer,) = (cell for cell in LIN if cell.method == "Transfer")
    assert greedy_curve(transfer, store).thresholds.tolist() == [[1.3, 0.9, 0.5, 0.3]]
    assert search_for(transfer).experiment.data.name == "fashion_mnist"


def test_what_is_not_run_has_no_curve(tmp_path):
    store = Store(tmp_path)
    add_table(store, [cell for cell in DC_SGD if cell.method == "Du"])
    curves = threshold_curves(DC_SGD, store)
    assert {name for name, curve in curves.items() if curve is not None} == {"Du"}
    assert greedy_curve(LIN[0], store) is None


def test_the_runs_of_the_sensitivity_figure(tmp_path):
    runs = sensitivity_runs()
    assert {name: len(one) for name, one in runs.items()} == dict.fromkeys(SERIES, 4)
    for name, (cell, fixed, varied, values) in SERIES.items():
        for value, run in zip(values, runs[name], strict=True):
            method = dict(run.experiment.method)
            assert method.pop("name") == ("dc_sgd_p" if cell.endswith("p") else "dc_sgd_e")
            assert run.seed == SEARCH_SEED
            plan = resolve(run.experiment, training_size("mnist"))
            built = plan.method.threshold
            read = built.sigma_statistic(0.84, 256) if varied == "sigma_h" else None
            assert (getattr(built, varied) if read is None else read) == value
            assert all(getattr(built, key) == number for key, number in fixed.items())
            # All at one noise, that of epsilon 2, for all steps.
            assert plan.method.noise_multiplier == pytest.approx(0.841397, abs=1e-6)
            assert (plan.steps, plan.experiment.privacy.epsilon) == (2344, 2.0)
    # p = 0.9 with the defaults is one run, whatever it is drawn against.
    same = {runs["p, DC-SGD-P"][3].key, runs["bins, DC-SGD-P"][2].key}
    assert same == {runs["sigma_h, DC-SGD-P"][2].key}
    store = Store(tmp_path)
    add_run(store, runs["bins, DC-SGD-E"][1], 0.94, [1.0] * EPOCHS)
    found = sensitivity_of("bins, DC-SGD-E", store)
    assert (found.accuracies, found.missing) == ({10: 0.94}, [5, 20, 40])
