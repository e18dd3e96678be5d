"""Experiments of any plain data: read, written and resolved, or refused by the name of a field."""

import json
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from dpjax import _toml
from dpjax.cli.flags import assignment
from dpjax.train import Experiment
from dpjax.train.plan import resolve
from tests.endurance.counting import count, examples
from tests.endurance.junk import (
    any_float,
    any_integer,
    any_text,
    anything,
    built,
    keys,
    plain,
    sane_float,
)

WHOLE = {
    **Experiment().to_plain(),
    "method": {"name": "dp_sgd", "threshold": 1.0, "noise_multiplier": 1.0},
    "train": {"batch_size": 64, "steps": 20},
    "privacy": {"delta": 1e-3, "accountant": "rdp"},
}
SECTIONS = sorted(WHOLE)
PATHS = [f"{section}.{key}" for section in SECTIONS for key in sorted(WHOLE[section])]
MORE = ["train.ema", "train.max_size", "train.epochs", "run.seed", "model.weights", "train.augment"]

# Names of what stands in a refusal: tables and their fields.
NAMES = {*SECTIONS, *(path.partition(".")[2] for path in (*PATHS, *MORE)), "noise", "epsilon"}

values = st.one_of(plain, sane_float, any_float, st.integers(-2, 100), any_integer, any_text)


@st.composite
def mutated(draw):
    """Draws a whole experiment with some tables or values replaced, taken away or added."""
    table = {name: dict(section) for name, section in WHOLE.items()}
    for _ in range(draw(st.integers(0, 3))):
        section = draw(st.sampled_from(SECTIONS))
        way = draw(st.integers(0, 9))
        if way == 0:
            table[section] = draw(plain)
        elif way == 1:
            table.pop(section, None)
        elif way == 2:
            table[draw(keys)] = draw(plain)
        elif isinstance(table.get(section), dict):
            known = st.sampled_from(sorted(WHOLE[section]))
            table[section][draw(known if way < 9 else keys)] = draw(values)
    return table


def check(experiment):
    """An experiment that was read survives its own forms, and is resolved or refused."""
    text = experiment.to_toml()
    assert Experiment.from_plain(tomllib.loads(text)).to_toml() == text
    size = experiment.data.examples or 1437
    plan = built(resolve, {"experiment": experiment, "dataset_size": size}, NAMES)
    if plan is not None:
        assert plan.steps >= 1
        assert len(plan.experiment.identity) == 64


@examples(120)
@given(table=mutated())
def test_experiments_with_parts_replaced(table):
    count("input", "Experiment.from_plain")
    experiment = built(Experiment.from_plain, {"plain": table}, {*NAMES, *map(str, table)})
    if experiment is not None and experiment.privacy.epsilon is None:
        built(check, {"experiment": experiment}, NAMES)


@examples(80)
@given(table=plain | anything)
def test_experiments_of_anything(table):
    count("input", "Experiment.from_plain, anything")
    built(Experiment.from_plain, {"plain": table}, {""})


@examples(150)
@given(
    path=st.one_of(
        st.sampled_from([*PATHS, *MORE]),
        st.tuples(st.sampled_from(SECTIONS), keys).map(".".join),
        keys,
    ),
    value=values,
)
def test_set_of_any_path_and_value(path, value):
    count("input", "Experiment.set")
    before = Experiment.from_plain(WHOLE)
    after = built(before.set, {"path": path, "value": value}, {*NAMES, path})
    assert before == Experiment.from_plain(WHOLE)
    if after is not None and after.privacy.epsilon is None:
        built(check, {"experiment": after}, NAMES)


@examples(150)
@given(key=keys, value=keys | st.one_of(any_float, any_integer, any_text).map(repr))
def test_assignments_of_any_text(key, value):
    count("input", "--set KEY=VALUE")
    pair = built(assignment, {"text": f"{key}={value}"}, {"--set"})
    assert pair is None or (isinstance(pair[0], str) and pair[0])


@examples(100)
@given(
    text=st.text(max_size=40)
    | st.lists(st.sampled_from("[]{}=\"'#.,\n 1eakind"), max_size=30).map("".join)
)
def test_files_of_any_text(tmp_path_factory, text):
    count("input", "Experiment.from_file")
    file = tmp_path_factory.mktemp("config") / "config.toml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    built(Experiment.from_file, {"path": file}, {"config.toml"})


@examples(100)
@given(table=st.dictionaries(keys | any_text, plain, max_size=4))
def test_toml_of_any_table(table):
    """What dpjax writes, the standard library reads back."""
    count("input", "_toml.dumps")
    read = tomllib.loads(_toml.dumps(table))
    assert json.dumps(read, sort_keys=True) == json.dumps(table, sort_keys=True)
