"""The table and the picture of a comparison are what the run folders say."""

import statistics
from itertools import pairwise

import numpy as np
import pytest

import dpjax
from dpjax.accounting import Ledger, published_together
from dpjax.accounting.bound import rounded_up
from dpjax.cli.compare_plots import comparison_figure, draw_comparison
from dpjax.cli.comparison import ComparedRun, comparison_text, read_comparison
from tests.cli.run_folders import (
    SAMPLING,
    STEPS,
    data_of,
    panel,
    png_size,
    words_of,
    write_run,
)

Text = pytest.importorskip("matplotlib.text").Text

FINALS = {"dp_sgd": (0.5, 0.6), "auto_s": (0.8, 0.9), "psasc": (0.7, 0.72)}
END = ["sigma", "at", "end", "C", "at", "end"]
SIGMAS = {"dp_sgd": 1.5, "auto_s": 2.0, "psasc": 1.2}


def rows_of(tmp_path, **options):
    """Writes two seeds of three methods, the seeds of a method apart from one another."""
    return [
        ComparedRun(
            method,
            write_run(
                tmp_path / method / f"seed-{seed}",
                method,
                sigma=SIGMAS[method],
                accuracies=(0.1, 0.3, FINALS[method][seed]),
                budget=9.0,
                **options,
            ),
        )
        for seed in range(2)
        for method in FINALS
    ]


def ledgers():
    for method, sigma in SIGMAS.items():
        built = getattr(dpjax.methods, method)(noise_multiplier=sigma)
        yield method, Ledger("digits").add_steps(built, SAMPLING, STEPS)


def test_the_picture_shows_means_and_deviations(tmp_path):
    figure = comparison_figure(read_comparison(rows_of(tmp_path)))
    axes = panel(figure, "Test accuracy, mean")
    for line, (method, finals) in zip(axes.lines, FINALS.items(), strict=True):
        assert list(line.get_xdata()) == [1, 2, 3]
        assert line.get_ydata() == pytest.approx([0.1, 0.3, statistics.mean(finals)]), method
    for band, finals in zip(axes.collections, FINALS.values(), strict=True):
        corners = band.get_paths()[0].vertices
        heights = corners[corners[:, 0] == 3][:, 1]
        middle, deviation = statistics.mean(finals), statistics.stdev(finals)
        assert heights.min() == pytest.approx(middle - deviation)
        assert heights.max() == pytest.approx(middle + deviation)


def test_the_best_is_on_top_with_its_number(tmp_path):
    axes = panel(comparison_figure(read_comparison(rows_of(tmp_path))), "Test accuracy at")
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["auto_s", "psasc", "dp_sgd"]
    bottom, top = axes.get_ylim()
    assert top < 0 < bottom  # the first is at height 0
    shown = {round(text.xy[1]): text.get_text() for text in axes.texts}
    assert shown == {0: "85.00 ± 7.07%", 1: "71.00 ± 1.41%", 2: "55.00 ± 7.07%"}


def test_a_method_has_one_colour(tmp_path):
    figure = comparison_figure(read_comparison(rows_of(tmp_path)))
    labels = {
        text.get_text(): text.get_color()
        for title in ("Test accuracy, mean", "Threshold")
        for text in panel(figure, title).texts
    }
    names = panel(figure, "Test accuracy at").get_yticklabels()
    assert {label.get_text(): label.get_color() for label in names} == labels
    assert len(set(labels.values())) == 3


def test_the_cost_stands_in_picture_and_table(tmp_path):
    rows = rows_of(tmp_path)
    all_ledgers = [ledger for _, ledger in ledgers() for _ in range(2)]
    cost = published_together(all_ledgers, 1e-4, "rdp")
    each, total = rounded_up(max(cost.each)), rounded_up(cost.all_published)
    words = words_of(comparison_figure(read_comparison(rows)))
    assert f"epsilon each ≤ {each}, all published ≤ {total}" in words
    assert "digits, mlp: ε = 9 at δ = 0.0001 (RDP)" in words
    text = comparison_text(rows)
    assert text.endswith(f"\n\nepsilon each <= {each}, all published <= {total}")
    assert text.startswith("digits, mlp: epsilon = 9 at delta = 0.0001 (rdp)\n\n")


def test_the_table_has_each_methods_own_numbers(tmp_path):
    lines = comparison_text(rows_of(tmp_path)).splitlines()[2:6]
    assert lines[0].split() == ["method", "accuracy", "epsilon", *END, "seeds"]
    epsilons = {name: rounded_up(ledger.epsilon(1e-4, "rdp")) for name, ledger in ledgers()}
    accuracies = {"auto_s": "85.00 +- 7.07%", "psasc": "71.00 +- 1.41%", "dp_sgd": "55.00 +- 7.07%"}
    for line, (name, accuracy) in zip(lines[1:], accuracies.items(), strict=True):
        cells = [name, *accuracy.split(), epsilons[name], f"{SIGMAS[name]:g}", "1", "2"]
        assert line.split() == cells


def test_a_single_run_has_no_deviation(tmp_path):
    rows = rows_of(tmp_path)[:3]
    figure = comparison_figure(read_comparison(rows))
    assert not panel(figure, "Test accuracy").collections
    texts = {text.get_text() for text in panel(figure, "Test accuracy at").texts}
    assert texts == {"50.00%", "80.00%", "70.00%"}
    assert "seeds" not in comparison_text(rows)


@pytest.mark.parametrize(("last", "scale"), [(5.0, "linear"), (500.0, "log")])
def test_thresholds_far_apart_have_a_logarithmic_axis(tmp_path, last, scale):
    thresholds = np.geomspace(1, last, STEPS)
    folder = write_run(tmp_path / "run", thresholds=thresholds)
    figure = comparison_figure(read_comparison([ComparedRun("dp_sgd", folder)]))
    axes = panel(figure, "Threshold")
    assert axes.get_yscale() == scale
    assert data_of(axes.lines) == [(list(range(STEPS)), thresholds.tolist())]


def test_labels_do_not_overlap(tmp_path):
    rows = [
        ComparedRun(f"method_{i}", write_run(tmp_path / str(i), accuracies=(0.3, 0.9 + i / 1e4)))
        for i in range(9)
    ]
    figure = comparison_figure(read_comparison(rows))
    figure.draw_without_rendering()
    for title in ("Test accuracy", "Threshold $C_t$"):
        texts = panel(figure, title).texts
        boxes = sorted(map(Text.get_window_extent, texts), key=lambda box: box.y0)
        assert len(boxes) == 9
        for low, high in pairwise(boxes):
            assert low.y1 <= high.y0 + 1.5  # pixels; a box has room above its letters


def test_the_file_is_a_picture(tmp_path):
    output = tmp_path / "compare.png"
    draw_comparison(rows_of(tmp_path), str(output))
    width, height = png_size(output)
    assert 1200 <= width <= 2400
    assert 700 <= height <= 1600


def test_a_method_without_guarantee_is_named(tmp_path):
    rows = [
        ComparedRun("dp_sgd", write_run(tmp_path / "a")),
        ComparedRun(
            "auto_dp_sgd",
            write_run(
                tmp_path / "b", "auto_dp_sgd", ledger=False, thresholds=np.full(STEPS, np.nan)
            ),
        ),
    ]
    text = comparison_text(rows)
    (line,) = [line for line in text.splitlines() if line.startswith("auto_dp_sgd")]
    assert line.split()[2:] == ["no", "guarantee", "1.5", "-"]
    assert text.endswith("(auto_dp_sgd: no guarantee), all published: no guarantee")
    assert "all published: no guarantee" in words_of(comparison_figure(read_comparison(rows)))


def test_refusals(tmp_path):
    first = ComparedRun("dp_sgd", write_run(tmp_path / "a"))
    other = ComparedRun("auto_s", write_run(tmp_path / "b", data="mnist"))
    with pytest.raises(ValueError, match=r"data\.name = digits, mnist: expected one"):
        read_comparison([first, other])
    with pytest.raises(ValueError, match="at least one"):
        read_comparison([])
    with pytest.raises(ValueError, match=r"expected \.png"):
        draw_comparison([first], str(tmp_path / "picture"))
    early = write_run(tmp_path / "c", accuracies=())
    for step in (1, 2):
        early.add_released({"step": step, "epoch": step / 4, "accuracy": 0.1, "epsilon": None})
    rows = [first, ComparedRun("dp_sgd", early)]
    with pytest.raises(ValueError, match="dp_sgd: expected seeds that were evaluated"):
        comparison_figure(read_comparison(rows))
