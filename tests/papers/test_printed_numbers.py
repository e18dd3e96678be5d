"""The printed numbers: all there, each with a name of its own."""

import pytest

from dpjax.papers import cell_named, cells, select, tables


def test_every_printed_number_has_a_name_of_its_own():
    assert len(cells()) == 822
    assert len({cell.name for cell in cells()}) == 822


# From the papers' pages, by hand.
@pytest.mark.parametrize(
    ("name", "accuracy", "std"),
    [
        ("dc-sgd/IV/mnist/cnn/2/dp-sgd", 95.62, 0.15),
        ("dc-sgd/VIII/names/lstm/4/dc-sgd-p", 59.56, 0.73),
        ("lin/2/mnist/cnn-b1/2.93/transfer", 98.1, 0.1),
        ("auto-dp/14/mnist/custom-cnn/22.85/sigma1.4929/auto-dp-e", 99.30, None),
        ("psasc/III/mnist/4-layer-cnn/3/dp-psasc*", 98.65, None),
        ("auto-clip/1/fashion-mnist/4-layer-cnn/3/auto-s", 86.36, 0.18),
    ],
)
def test_numbers_are_those_of_the_papers(name, accuracy, std):
    cell = cell_named(name)
    assert (cell.accuracy, cell.std) == (accuracy, std)


def test_tables_are_chosen_by_parts_of_names():
    chosen = select("dc-sgd/IV", ["mnist", "1,4"])
    assert len(chosen) == 10
    assert {cell.epsilon for cell in chosen} == {1.0, 4.0}
    assert sum(map(len, tables().values())) == 822


@pytest.mark.parametrize(
    ("table", "rows", "message"),
    [
        ("dc-sgd/IVa", [], "did you mean 'dc-sgd/IV'"),
        ("dc-sgd/IV", ["mnits"], "rows = 'mnits': did you mean 'mnist'"),
    ],
)
def test_unknown_names_are_refused(table, rows, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        select(table, rows)


def test_an_unknown_cell_is_refused_with_the_nearest_few():
    with pytest.raises(ValueError, match=r"cell = 'dc-sgd/IV/mnist/cnn/2/dpsgd'") as caught:
        cell_named("dc-sgd/IV/mnist/cnn/2/dpsgd")
    assert "did you mean 'dc-sgd/IV/mnist/cnn/2/dp-sgd'" in str(caught.value)
    assert "818 others" in str(caught.value)
    assert len(str(caught.value)) < 300
