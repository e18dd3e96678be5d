"""The printed numbers: all there, as the papers' text has them, each with a name of its own."""

import pytest

from dpjax.papers import cell_named, cells, select, tables
from dpjax.papers.printed_numbers import METRICS

# How many numbers each table of results prints, and their sum: counted and added up from the
# papers' text, column by column, without looking at printed.csv.
FROM_THE_TEXT = {
    ("dc-sgd/I", "seconds"): (20, 17962),
    ("dc-sgd/I", "runs"): (16, 616),
    ("dc-sgd/II", "accuracy"): (90, 5734.0),
    ("dc-sgd/III", "accuracy"): (90, 5924.73),
    ("dc-sgd/IV", "accuracy"): (90, 6464.23),
    ("dc-sgd/V", "accuracy"): (90, 6485.91),
    ("dc-sgd/VIII", "accuracy"): (84, 5854.53),
    ("lin/1", "accuracy"): (16, 1257.6),
    ("lin/2", "accuracy"): (96, 6849.6),
    ("lin/3", "accuracy"): (31, 2052.7),
    ("auto-dp/2", "accuracy"): (16, 1538.05),
    ("auto-dp/2", "epsilon"): (16, 122.35),
    ("auto-dp/2", "epsilon change"): (4, -300.5),
    ("auto-dp/2", "accuracy gain"): (4, 15.19),
    ("auto-dp/3", "accuracy"): (16, 1494.67),
    ("auto-dp/3", "epsilon"): (16, 54.65),
    ("auto-dp/3", "epsilon change"): (4, -307.09),
    ("auto-dp/3", "accuracy gain"): (4, 7.97),
    ("auto-dp/4", "accuracy"): (16, 1168.5),
    ("auto-dp/4", "epsilon"): (16, 80.67),
    ("auto-dp/4", "epsilon change"): (4, -250.34),
    ("auto-dp/4", "accuracy gain"): (4, 36.97),
    ("auto-dp/5", "accuracy"): (12, 1027.94),
    ("auto-dp/5", "epsilon"): (12, 60.78),
    ("auto-dp/5", "epsilon change"): (4, -199.59),
    ("auto-dp/5", "accuracy gain"): (4, 4.67),
    ("auto-dp/6", "accuracy"): (4, 365.55),
    ("auto-dp/9", "accuracy"): (34, 1956.91),
    ("auto-dp/10", "accuracy"): (34, 1982.27),
    ("auto-dp/11", "accuracy"): (14, 1344.11),
    ("auto-dp/11", "sensitivity"): (14, 499.8113),
    ("auto-dp/12", "accuracy"): (20, 1707.35),
    ("auto-dp/12", "sensitivity"): (20, 132.5378),
    ("auto-dp/13", "accuracy"): (16, 1402.2),
    ("auto-dp/13", "sensitivity"): (16, 135.3851),
    ("auto-dp/14", "accuracy"): (16, 1586.82),
    ("auto-dp/14", "epsilon"): (16, 120.45),
    ("auto-dp/15", "accuracy"): (16, 1517.59),
    ("auto-dp/15", "epsilon"): (16, 280.47),
    ("auto-dp/16", "accuracy"): (16, 1240.97),
    ("auto-dp/16", "epsilon"): (16, 1649.74),
    ("auto-dp/17", "accuracy"): (16, 1385.02),
    ("auto-dp/17", "epsilon"): (16, 2643.15),
    ("psasc/III", "accuracy"): (25, 2186.7),
    ("auto-clip/1", "accuracy"): (24, 2122.08),
    ("auto-clip/2", "accuracy"): (45, 3895.44),
    ("auto-clip/3", "accuracy"): (40, 3565.48),
    ("auto-clip/4", "BLEU"): (30, 1741.336),
    ("auto-clip/4", "ROUGE-L"): (30, 1923.034),
    ("de/abstract", "accuracy"): (1, 81.4),
}
# The numbers after ±, in the same way.
SPREADS = {
    "dc-sgd/IV": (90, 30.88),
    "dc-sgd/V": (90, 33.35),
    "dc-sgd/VIII": (84, 30.34),
    "lin/1": (16, 3.1),
    "lin/2": (96, 21.6),
    "lin/3": (31, 6.0),
    "auto-clip/1": (24, 3.25),
}
TOTAL = 1_270  # 1,269 of the five papers, and one of De et al.


def test_every_table_has_the_numbers_of_the_text():
    found = {}
    for cell in cells():
        found.setdefault((cell.table_name, cell.metric), []).append(cell.value)
    assert {key: (len(own), round(sum(own), 4)) for key, own in found.items()} == FROM_THE_TEXT
    assert sum(count for count, _ in FROM_THE_TEXT.values()) == TOTAL
    assert {cell.metric for cell in cells()} == set(METRICS)


def test_every_spread_is_that_of_the_text():
    found = {}
    for cell in cells():
        if cell.spread is not None:
            found.setdefault(cell.table_name, []).append(cell.spread)
    assert {key: (len(own), round(sum(own), 4)) for key, own in found.items()} == SPREADS


def test_every_printed_number_has_a_name_of_its_own():
    assert len({cell.name for cell in cells()}) == len(cells()) == TOTAL
    assert sum(map(len, tables().values())) == TOTAL


# From the papers' pages, by hand.
@pytest.mark.parametrize(
    ("name", "value", "spread"),
    [
        ("dc-sgd/I/cifar10/resnet34/andrew/seconds", 24 * 60 + 53, None),
        ("dc-sgd/IV/mnist/cnn/2/dp-sgd", 95.62, 0.15),
        ("dc-sgd/VIII/names/lstm/4/dc-sgd-p", 59.56, 0.73),
        ("lin/2/mnist/cnn-b1/2.93/transfer", 98.1, 0.1),
        ("auto-dp/14/mnist/custom-cnn/22.85/sigma1.4929/auto-dp-e", 99.30, None),
        (
            "auto-dp/16/cifar100/nfnet-f1-pretrained/95.94/sigma1.6082/auto-dp-e/epsilon",
            95.94,
            None,
        ),
        ("auto-dp/9/cifar100/nfnet-f1-pretrained/sigma2.8/dp-sgd-c=20", 61.88, None),
        ("auto-dp/11/mnist/custom-cnn/sigma2.8/auto-dp-l-cycliclr/sensitivity", 13.1589, None),
        ("auto-dp/12/ag-news/bilstm/sigma2.8/auto-dp-l-w=0.2/sensitivity", 1.4779, None),
        ("psasc/III/mnist/4-layer-cnn/3/dp-psasc*", 98.65, None),
        ("auto-clip/1/fashion-mnist/4-layer-cnn/3/auto-s", 86.36, 0.18),
        ("auto-clip/2/mnli-mm/roberta-base/8/rgp", 79.6, None),
        ("auto-clip/4/e2e/gpt2/3/retrain/bleu", 15.457, None),
    ],
)
def test_numbers_are_those_of_the_papers(name, value, spread):
    cell = cell_named(name)
    assert (cell.value, cell.spread) == (value, spread)


def test_tables_are_chosen_by_parts_of_names():
    chosen = select("dc-sgd/IV", ["mnist", "1,4"])
    assert len(chosen) == 10
    assert {cell.epsilon for cell in chosen} == {1.0, 4.0}


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("dc-sgd/IVa", [], "did you mean 'dc-sgd/IV'"),
        ("dc-sgd/IV", ["mnits"], "rows = 'mnits': did you mean 'mnist'"),
    ],
)
def test_unknown_names_are_refused(name, rows, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        select(name, rows)


def test_an_unknown_cell_is_refused_with_the_nearest_few():
    with pytest.raises(ValueError, match=r"cell = 'dc-sgd/IV/mnist/cnn/2/dpsgd'") as caught:
        cell_named("dc-sgd/IV/mnist/cnn/2/dpsgd")
    assert "did you mean 'dc-sgd/IV/mnist/cnn/2/dp-sgd'" in str(caught.value)
    assert f"{TOTAL - 4} others" in str(caught.value)
    assert len(str(caught.value)) < 300
