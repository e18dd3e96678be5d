"""`dpjax papers figure`, on a small store written by hand."""

import functools
from pathlib import Path

import numpy as np
import pytest

from dpjax.cli.command import Parser
from dpjax.cli.papers import figure
from dpjax.cli.papers.figure import FIGURES
from dpjax.cli.papers.figures import Sources, formulas, gradients, squared_error
from dpjax.papers import Store
from dpjax.papers.figures import noise_decays, similarity
from dpjax.papers.figures.similarity import EDGES, Similarity, read_similarity, write_similarity
from dpjax.papers.figures.squared_error import NormsOfRun
from dpjax.train import Experiment, resolve
from dpjax.train.folder import NOT_PRIVATE
from tests.papers.stores import full_store


@pytest.fixture
def quick(monkeypatch):
    """Takes away what takes time: training, and long schedules."""
    short = functools.partial(noise_decays.noise_decay, dataset_size=640, epochs=20)
    monkeypatch.setattr(formulas, "noise_decay", short)
    monkeypatch.setattr(squared_error, "_STEPS", 8)
    monkeypatch.setattr(squared_error, "_SETTLED", 4)

    def seen(experiment, dataset, steps, examples):
        norms = np.random.default_rng(0).lognormal(0, 1, examples)
        plan = resolve(experiment, len(dataset.train.y))
        return NormsOfRun(plan, 1000, dict.fromkeys(steps, norms))

    monkeypatch.setattr(squared_error, "gradient_norms", seen)


@pytest.fixture
def store(tmp_path):
    rows = []
    for method in ("dp_sgd", "psasc"):
        for step in range(12):
            counts = tuple(int(value) for value in 10 * (np.abs(EDGES[1:] - 1) < 0.5))
            rows.append(Similarity(method, step, step / 4, 0.1 * step - 0.5, 1, 2, 1, 2, 3, counts))
    write_similarity(tmp_path / "similarity.csv", rows)
    return full_store(tmp_path)


def run(*argv):
    parser = Parser(prog="figure")
    figure.COMMAND.add_flags(parser)
    return figure.COMMAND.run(parser.parse_args(argv))


def words(drawn):
    found = [text.get_text() for text in drawn.findobj(lambda artist: hasattr(artist, "get_text"))]
    return "\n".join(found)


@pytest.mark.slow
def test_all_figures_are_drawn_small(quick, store, capsys):
    assert run("--all", "--store", str(store.path)) == 0
    files = capsys.readouterr().out.splitlines()
    assert files == [str(store.path / "figures" / f"{name}.png") for name in FIGURES]
    for file in files:
        content = Path(file).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < 150_000


def test_one_figure_to_a_file_of_ones_own(store, tmp_path):
    file = tmp_path / "own" / "rules.svg"
    assert run("clipped-norms", "--store", str(store.path), "--out", str(file)) == 0
    text = file.read_text()
    assert text.startswith("<?xml")


def test_figures_say_what_is_missing(tmp_path):
    sources = Sources(Store(tmp_path))
    text = words(FIGURES["lin-thresholds"].draw(sources))
    assert "no run is finished" in text
    assert "not run: DP-SGD, DC-SGD-P, DC-SGD-E, Andrew, Du" in text.replace("\n", " ")
    text = words(FIGURES["dc-sensitivity"].draw(sources))
    assert "20 runs are missing" in text
    assert "E at 5, 10, 20, 40 not run" in text


def test_a_full_store_leaves_nothing_missing(store):
    sources = Sources(store)
    for name in ("lin-thresholds", "dc-sensitivity"):
        text = words(FIGURES[name].draw(sources))
        assert "not run" not in text
        assert "missing" not in text
    text = words(FIGURES["lin-thresholds"].draw(sources))
    assert all(name in text for name in ("Greedy", "Transfer", "Papernot", "DC-SGD-E"))
    assert "Pichapati" not in text


def test_what_comes_from_training_examples_says_so(quick, store):
    for name in ("dc-squared-error", "psasc-gradients"):
        assert NOT_PRIVATE in words(FIGURES[name].draw(Sources(store))).replace("\n", " ")


def test_measuring_writes_to_the_store(monkeypatch, tmp_path, capsys):
    tiny = Experiment.from_plain(
        {
            "model": {"name": "linear"},
            "method": {"name": "psasc", "noise_multiplier": 1.0},
            "train": {"batch_size": 256, "steps": 3, "engine": "vmap"},
            "run": {"seed": 1},
        }
    )
    monkeypatch.setattr(similarity, "measured_experiments", lambda: [tiny])
    assert run("psasc-gradients", "--measure", "--store", str(tmp_path)) == 0
    assert "psasc, step 0: cosine " in capsys.readouterr().err
    rows = read_similarity(tmp_path / "similarity.csv")
    assert [(row.method, row.step) for row in rows] == [("psasc", step) for step in range(3)]
    assert (tmp_path / "figures" / "psasc-gradients.png").exists()


def test_means_of_neighbours():
    values = np.arange(20.0) ** 2
    found = gradients._smoothed(values)
    assert found[10] == pytest.approx(values[7:14].mean())
    assert found[0] == pytest.approx(values[:4].mean())
    assert gradients._smoothed([3.0]).tolist() == [3.0]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "expected the NAME of a figure, or --all"),
        (("clipped-norms", "--all"), "expected the NAME of a figure, or --all"),
        (("clipped-norm",), "did you mean 'clipped-norms'"),
        (("clipped-norms", "--measure"), "--measure: clipped-norms is drawn without measurements"),
        (("--all", "--out", "a.png"), "--out a.png: expected one figure, not --all"),
        (("psasc-gradients",), "similarity.csv: missing; `dpjax papers figure"),
    ],
)
def test_refusals(argv, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(*argv, "--store", str(tmp_path))
