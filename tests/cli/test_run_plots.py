"""`dpjax plot runs` shows what the files of runs say, and what showing them together costs."""

import sys

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

import dpjax
from dpjax.accounting import Ledger, published_together
from dpjax.accounting.bound import rounded_up
from dpjax.cli import figures
from dpjax.cli.diagnostics_plots import diagnostics_figure
from dpjax.cli.released_runs import read_runs, spent_by
from dpjax.cli.run_plots import run_figure
from dpjax.sampling import FixedSize
from tests.cli.calls import printed, refused
from tests.cli.run_folders import (
    SAMPLING,
    STEPS,
    data_of,
    panel,
    png_size,
    words_of,
    write_diagnostics,
    write_run,
)

pytest.importorskip("matplotlib")

ALL_STEPS = list(range(STEPS))


def figure_of(*folders):
    runs = read_runs([str(folder.path) for folder in folders])
    return run_figure(runs, spent_by(runs))


def ledger_of(sigma, sampling=SAMPLING):
    return Ledger("digits").add_steps(dpjax.methods.dp_sgd(sigma), sampling, STEPS)


def test_lines_are_the_files(tmp_path):
    thresholds = np.linspace(1, 3, STEPS)
    folder = write_run(tmp_path / "run", thresholds=thresholds, budget=9.0)
    figure = figure_of(folder)
    assert data_of(panel(figure, "Test accuracy").lines) == [([1, 2, 3], [0.2, 0.5, 0.75])]
    assert data_of(panel(figure, "Threshold").lines) == [(ALL_STEPS, thresholds.tolist())]
    spent = [
        dpjax.accounting.epsilon(dpjax.methods.dp_sgd(1.5), SAMPLING, step, 1e-4, "rdp")
        for step in (4, 8, 12)
    ]
    curve, budget = panel(figure, "Privacy spent").lines
    assert data_of([curve]) == [([4, 8, 12], spent)]
    assert set(budget.get_ydata()) == {9.0}
    assert f"epsilon ≤ {rounded_up(spent[-1])}, at δ = 0.0001 (RDP)" in words_of(figure)


def test_every_group_has_a_line(tmp_path):
    thresholds = np.stack([np.full(STEPS, 2.0), np.linspace(1, 0.01, STEPS)], axis=1)
    axes = panel(figure_of(write_run(tmp_path / "run", thresholds=thresholds)), "Threshold")
    assert data_of(axes.lines) == [(ALL_STEPS, column.tolist()) for column in thresholds.T]
    assert "each group" in axes.get_title("left")
    assert axes.get_yscale() == "log"


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_several_runs_say_what_all_of_them_cost(tmp_path, accountant):
    sigmas = (1.5, 2.0, 0.9)
    folders = [
        write_run(tmp_path / f"r{i}", sigma=sigma, accountant=accountant)
        for i, sigma in enumerate(sigmas)
    ]
    figure = figure_of(*folders)
    cost = published_together(list(map(ledger_of, sigmas)), 1e-4, accountant)
    each, total = rounded_up(max(cost.each)), rounded_up(cost.all_published)
    assert f"epsilon each ≤ {each}, all published ≤ {total}, at δ" in words_of(figure)
    assert cost.all_published > max(cost.each)
    (legend,) = figure.subfigs[-1].legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["dp_sgd (r0)", "dp_sgd (r1)", "dp_sgd (r2)"]
    colours = {line.get_color() for line in panel(figure, "Test accuracy").lines}
    assert len(colours) == 3


def test_folder_names_that_repeat_are_written_in_full(tmp_path):
    folders = [write_run(tmp_path / name / "run") for name in ("a", "b")]
    for run, folder in zip(read_runs([str(f.path) for f in folders]), folders, strict=True):
        assert run.label.endswith(f"({folder.path})")


def test_a_folder_that_is_named_after_its_method_is_named_once(tmp_path):
    folders = [write_run(tmp_path / name) for name in ("dp_sgd", "dp_sgd-2")]
    runs = read_runs([str(folder.path) for folder in folders])
    assert [run.label for run in runs] == ["dp_sgd", "dp_sgd-2"]


def test_without_a_ledger_nothing_is_promised(tmp_path):
    lost = write_run(tmp_path / "a", "auto_dp_sgd", ledger=False)
    alone = words_of(figure_of(lost))
    assert "epsilon: no guarantee" in alone
    assert "≤" not in alone
    together = words_of(figure_of(lost, write_run(tmp_path / "b")))
    each = rounded_up(ledger_of(1.5).epsilon(1e-4, "rdp"))
    sentence = f"each ≤ {each} (auto_dp_sgd: no guarantee), all published: no guarantee"
    assert sentence in together
    assert "auto_dp_sgd, no guarantee" in together  # in the legend


def test_data_sets_are_not_composed(tmp_path):
    folders = [write_run(tmp_path / data, data=data) for data in ("digits", "mnist")]
    words = words_of(figure_of(*folders))
    assert "all published: each data set alone" in words
    assert "2 runs on digits, mlp and mnist, mlp" in words


def test_runs_that_no_accountant_knows_together(tmp_path):
    fixed = write_run(tmp_path / "a", sampling=FixedSize(5, 50))
    words = words_of(figure_of(fixed, write_run(tmp_path / "b")))
    assert "all published: no accountant has a number" in words


def test_the_smallest_delta_holds_for_all(tmp_path):
    first = write_run(tmp_path / "a", delta=1e-3)
    second = write_run(tmp_path / "b", delta=1e-6, accountant="pld")
    spent = spent_by(read_runs([str(first.path), str(second.path)]))
    ledger = ledger_of(1.5)
    assert spent.each == (ledger.epsilon(1e-6, "rdp"), ledger.epsilon(1e-6, "pld"))
    assert spent.all_published == published_together([ledger] * 2, 1e-6, "pld").all_published
    assert spent.target == "delta = 1e-06 (rdp and pld)"


def test_only_the_diagnostics_say_not_private(tmp_path):
    folder = write_run(tmp_path / "run")
    write_diagnostics(folder)
    (run,) = read_runs([str(folder.path)])
    figure = diagnostics_figure(run)
    assert "NOT PRIVATE" in words_of(figure)
    assert "NOT PRIVATE" not in words_of(figure_of(folder))
    (banner,) = [t for t in figure.subfigs[0].texts if "NOT PRIVATE" in t.get_text()]
    assert banner.get_color() == "white"
    red, green, blue, _ = figure.subfigs[0].get_facecolor()
    assert red > 4 * max(green, blue)
    # Released numbers are in the other figure: accuracy and epsilon are not named here.
    assert "ccuracy" not in words_of(figure)
    assert "epsilon" not in words_of(figure)


def test_diagnostics_are_the_files(tmp_path):
    folder = write_run(tmp_path / "run")
    write_diagnostics(folder)
    folder.add_diagnostics({"step": 16, "examples": 3, "loss": 1.0})  # nothing was finite
    figure = diagnostics_figure(read_runs([str(folder.path)])[0])
    assert data_of(panel(figure, "Clipped").lines) == [([0, 4, 8, 12], [0, 0.25, 0.5, 0.75])]
    assert data_of(panel(figure, "Gradient norms over").lines) == [([0, 4, 8, 12], [1, 2, 3, 4])]
    expected = [([0.5, 1.0, 2.0 + i], [1.0, 1.0, 1 / (2 + i)]) for i in (0, 1, 3)]
    weights = panel(figure, "Scaling weights")
    assert data_of(weights.lines) == expected  # early, middle, last
    assert [line.get_label() for line in weights.lines] == ["step 0", "step 4", "step 12"]
    norms = panel(figure, "Gradient norms")
    for patch, i in zip(norms.patches[1::2], (0, 1, 3), strict=True):
        values, edges, _ = patch.get_data()
        assert list(edges) == np.geomspace(0.1 + i, 10 + i, 4).tolist()
        assert values * np.diff(np.log10(edges)) == pytest.approx([1 / 3, 2 / 3, 0])


def test_the_command_writes_both_figures_into_the_run(capsys, tmp_path):
    folder = write_run(tmp_path / "run", thresholds=np.linspace(1, 2, STEPS))
    run, diagnostics = (folder.path / "plots" / f"{name}.png" for name in ("run", "diagnostics"))
    assert printed(capsys, ["plot", "runs", str(folder.path)]) == f"{run}\n"
    assert not diagnostics.exists()
    write_diagnostics(folder)
    text = printed(capsys, ["plot", "runs", str(folder.path)])
    assert text == f"{run}\n{diagnostics} (not private)\n"
    for file in (run, diagnostics):
        width, height = png_size(file)
        assert 1200 <= width <= 2400
        assert 700 <= height <= 1600


def test_diagnostics_stay_with_their_run(capsys, tmp_path):
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    write_diagnostics(folders[1])
    public = tmp_path / "public"
    public.mkdir()
    runs = [str(folder.path) for folder in folders]
    printed(capsys, ["plot", "runs", *runs, "--output", str(public / "both.svg")])
    assert [file.name for file in public.iterdir()] == ["both.svg"]
    assert not (folders[0].path / "plots").exists()
    assert (folders[1].path / "plots" / "diagnostics.png").exists()


def test_refusals(capsys, tmp_path):
    a, b = (str(write_run(tmp_path / name).path) for name in ("a", "b"))
    command = ["plot", "runs"]
    assert "holds no run" in refused(capsys, [*command, str(tmp_path)])
    assert "--output: missing" in refused(capsys, [*command, a, b])
    assert "given twice" in refused(capsys, [*command, a, f"{a}/", "--output", "x.png"])
    for name in ("figure.xyz", "figure"):
        output = str(tmp_path / name)
        assert "expected .png, .pdf or .svg" in refused(capsys, [*command, a, "--output", output])
    empty = write_run(tmp_path / "c", accuracies=())
    assert "released.jsonl" in refused(capsys, [*command, str(empty.path)])
    unresolved = write_run(tmp_path / "d")
    unresolved.write_config(unresolved.read_config().set("privacy.delta", "1/N"))
    assert "privacy.delta = '1/N'" in refused(capsys, [*command, str(unresolved.path)])
    assert not list(tmp_path.rglob("*.png"))


def test_missing_matplotlib_says_what_to_install(capsys, monkeypatch, tmp_path):
    folder = write_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install dpjax[plots]" in refused(capsys, ["plot", "runs", str(folder.path)])


def test_lines_that_coincide_become_stripes(tmp_path):
    moving = np.linspace(1, 2, STEPS)
    folders = [write_run(tmp_path / name, thresholds=moving) for name in ("a", "b")]
    other = write_run(tmp_path / "c", sigma=3.0, thresholds=3 * moving)
    first, second, third = panel(figure_of(*folders, other), "Threshold").lines
    assert first.is_dashed()
    assert second.is_dashed()
    assert not third.is_dashed()


@pytest.mark.parametrize("count", [1, 2, 5, 21, 40])
def test_labels_are_spread_as_least_squares_says(count):
    for seed in range(20):
        places = np.random.default_rng(seed).beta(8, 2, count)
        gap = 0.03
        found = figures.spread(places, gap)
        order = np.argsort(places)
        moved = np.array(found)[order]
        assert moved[0] >= 0
        assert moved[-1] <= 1 + 1e-6
        fits = min(gap, 1 / max(1, count - 1))
        assert (np.diff(moved) >= fits - 1e-5).all()
        wanted = isotonic_regression(places[order] - fits * np.arange(count)).x
        inside = np.clip(wanted, 0, 1 - fits * (count - 1)) + fits * np.arange(count)
        assert moved == pytest.approx(inside, abs=1e-5)
