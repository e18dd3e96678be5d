"""The table and the picture of a comparison are what the run folders say."""

import math
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


def half_width(values):
    """Half of Student's 95% interval: t with one degree of freedom is tan(0.475 pi)."""
    assert len(values) == 2
    return math.tan(0.475 * math.pi) * statistics.stdev(values) / math.sqrt(2)


def test_the_picture_shows_means_and_intervals(tmp_path):
    figure = comparison_figure(read_comparison(rows_of(tmp_path)))
    axes = panel(figure, "Test accuracy, mean")
    for line, (method, finals) in zip(axes.lines, FINALS.items(), strict=True):
        assert list(line.get_xdata()) == [1, 2, 3]
        assert line.get_ydata() == pytest.approx([0.1, 0.3, statistics.mean(finals)]), method
    for band, finals in zip(axes.collections, FINALS.values(), strict=True):
        corners = band.get_paths()[0].vertices
        heights = corners[corners[:, 0] == 3][:, 1]
        middle, half = statistics.mean(finals), half_width(finals)
        assert heights.min() == pytest.approx(middle - half)
        assert heights.max() == pytest.approx(middle + half)


def test_the_best_is_on_top_with_its_number(tmp_path):
    axes = panel(comparison_figure(read_comparison(rows_of(tmp_path))), "Test accuracy at")
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["auto_s", "psasc", "dp_sgd"]
    bottom, top = axes.get_ylim()
    assert top < 0 < bottom  # the first is at height 0
    shown = {round(text.xy[1]): text.get_text() for text in axes.texts}
    assert shown == {0: "85.00 ± 63.53%", 1: "71.00 ± 12.71%", 2: "55.00 ± 63.53%"}
    assert axes.get_xlabel() == "the test set's own error: ± 3.7 points"  # of 360 examples


def test_a_method_has_one_colour(tmp_path):
    figure = comparison_figure(read_comparison(rows_of(tmp_path)))
    labels = {
        text.get_text(): text.get_color() for text in panel(figure, "Test accuracy, mean").texts
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
    assert text.endswith(f"\nepsilon each <= {each}, all published <= {total}")
    assert text.startswith("digits, mlp: epsilon = 9 at delta = 0.0001 (rdp)\n\n")


def test_the_table_has_each_methods_own_numbers(tmp_path):
    lines = comparison_text(rows_of(tmp_path)).splitlines()[2:6]
    assert lines[0].split() == ["rank", "method", "accuracy", "epsilon", *END]
    epsilons = {name: rounded_up(ledger.epsilon(1e-4, "rdp")) for name, ledger in ledgers()}
    accuracies = {
        "auto_s": "85.00 +- 63.53%",
        "psasc": "71.00 +- 12.71%",
        "dp_sgd": "55.00 +- 63.53%",
    }
    for line, (name, accuracy) in zip(lines[1:], accuracies.items(), strict=True):
        cells = ["1-3", name, *accuracy.split(), epsilons[name], f"{SIGMAS[name]:g}", "1"]
        assert line.split() == cells


def test_a_single_run_has_no_deviation(tmp_path):
    rows = rows_of(tmp_path)[:3]
    figure = comparison_figure(read_comparison(rows))
    assert not panel(figure, "Test accuracy").collections
    texts = {text.get_text() for text in panel(figure, "Test accuracy at").texts}
    assert texts == {"50.00%", "80.00%", "70.00%"}
    text = comparison_text(rows)
    assert "one seed is no comparison" in text
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["-"] * 3


RANKS = {
    "apart": ({"a": (0.9, 0.901), "b": (0.5, 0.501), "c": (0.7, 0.701)}, ["1", "3", "2"]),
    "alike": ({"a": (0.9, 0.8), "b": (0.85, 0.8)}, ["1-2", "1-2"]),
    # a is apart from c, and b from neither.
    "chain": ({"a": (0.9, 0.901), "b": (0.85, 0.88), "c": (0.7, 0.701)}, ["1-2", "1-3", "2-3"]),
}


@pytest.mark.parametrize("case", RANKS)
def test_overlapping_intervals_are_not_ranked(tmp_path, case):
    finals, expected = RANKS[case]
    rows = [
        ComparedRun(name, write_run(tmp_path / name / str(seed), accuracies=(0.1, accuracy)))
        for name, accuracies in finals.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    lines = [line.split() for line in comparison_text(rows).splitlines()]
    found = {line[1]: line[0] for line in lines if len(line) > 1 and line[1] in finals}
    assert [found[name] for name in finals] == expected
    assert "the test set's 360 examples leave +- " in comparison_text(rows)


def test_constant_thresholds_have_no_panel(tmp_path):
    rows = rows_of(tmp_path / "constant")
    titles = [axes.get_title("left") for axes in comparison_figure(read_comparison(rows)).axes]
    assert not any(title.startswith("Threshold") for title in titles)
    moving = write_run(tmp_path / "moving", thresholds=np.linspace(1, 3, STEPS))
    figure = comparison_figure(read_comparison([*rows, ComparedRun("moving", moving)]))
    axes = panel(figure, "Threshold")
    assert len(axes.lines) == 1
    assert axes.get_xlabel() == "step (constant: dp_sgd 1, auto_s 1, psasc 1)"


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
        ComparedRun(
            f"method_{i}",
            write_run(
                tmp_path / str(i),
                accuracies=(0.3, 0.9 + i / 1e4),
                thresholds=np.linspace(1, 2 + i / 1e4, STEPS),
            ),
        )
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
    assert 600 <= height <= 1600


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
    (line,) = [line for line in text.splitlines() if line.startswith("-     auto_dp_sgd")]
    assert line.split()[3:] == ["no", "guarantee", "1.5", "-"]
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
