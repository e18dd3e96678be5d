"""`dpjax tune-cost` prints what the library's plans leave for each run."""

import math

import pytest

import dpjax
from dpjax import accounting
from dpjax.accounting import tuning
from dpjax.cli.request import Request
from dpjax.cli.tune_cost import part_of, ways
from dpjax.sampling import FixedSize, FullBatch, Poisson, TruncatedPoisson
from dpjax.train import Experiment
from tests.cli.calls import RUN, refused

POISSON = Poisson.with_rate(0.01)
TUNE = (
    *("tune-cost", "--method", "dp_sgd", *RUN[4:], "--accountant", "rdp"),
    *("--epsilon", "2", "--delta", "1e-5", "--candidates", "4"),
)
SEARCHES = {
    "liu_talwar": (tuning.liu_talwar(4), 8),
    "grid_composition": (tuning.grid_composition(4), 4),
    "repeat, geometric": (tuning.repeat_and_select(8.0), 8),
    "repeat, logarithmic": (tuning.repeat_and_select(8.0, 0.0), 8),
    "repeat, Poisson": (tuning.repeat_and_select(8.0, math.inf), 8),
}


@pytest.fixture(scope="module")
def shown():
    """The text and the data of one call, which takes some seconds."""
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpjax.cli.printing.show", lambda _, text, found: calls.append((text, found)))
        assert dpjax.cli.main(TUNE) == 0
    return calls[0]


@pytest.fixture
def rows(shown):
    return {row["way"]: row for row in shown[1]["results"]}


def test_every_way_has_a_row(rows):
    assert list(rows) == ["no tuning", *SEARCHES, "disjoint_split"]


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_cost_what_the_library_says(rows, name):
    (way, runs), row = SEARCHES[name], rows[name]
    assert tuning.Tuning.from_plain(row["tuning"]) == way
    method = dpjax.Mechanism.from_plain(row["method"])
    assert row["whole"]["epsilon"] == tuning.Search(way, method, POISSON, 50).epsilon(1e-5)
    assert 0.999 * 2 <= row["whole"]["epsilon"] <= 2
    assert row["alone"]["epsilon"] == accounting.epsilon(method, POISSON, 50, 1e-5, "rdp")
    assert row["expected_runs"] == runs
    assert ("every run" in row["published"]) == (name == "grid_composition")


def test_no_tuning_is_a_calibrated_run(rows):
    method = accounting.calibrate(dpjax.methods.dp_sgd(1.0), POISSON, 50, 2.0, 1e-5, "rdp")
    assert rows["no tuning"]["method"] == method.to_plain()
    assert rows["no tuning"]["tuning"] is None


def test_liu_talwar_says_what_each_run_may_cost(rows):
    per_run = tuning.liu_talwar(4).per_run(2.0, 1e-5)
    assert rows["liu_talwar"]["per_run"] == dict(zip(("epsilon", "delta"), per_run, strict=True))
    assert "(eps_1, delta_1) = (0.6666, " in rows["liu_talwar"]["note"]


def test_the_split_runs_on_a_part_for_as_many_epochs(rows):
    row = rows["disjoint_split"]
    assert (row["sampling"], row["steps"]) == (Poisson(10, 200).to_plain(), 10)
    method = dpjax.Mechanism.from_plain(row["method"])
    alone = accounting.epsilon(method, Poisson(10, 200), 10, 1e-5)
    assert row["alone"]["epsilon"] == alone
    assert 0.999 * 2 <= alone <= row["whole"]["epsilon"] == 2


def test_table(shown):
    header, body, notes, assumed = (block.splitlines() for block in shown[0].split("\n\n"))
    assert "candidates  4" in header
    assert [line.split("  ")[0] for line in body[1:]] == [
        "no tuning",
        "liu_talwar [1]",
        *list(SEARCHES)[1:],
        "disjoint_split [2]",
    ]
    assert "(rdp)  8     the winner, not the number of runs" in body[4]
    assert "2 (pld)        2 (pld)  4" in body[7]
    assert notes[1] == "[2] each run has 10 steps on 200 examples"
    assert "no private data" in assumed[0]


def test_the_mean_is_free_where_runs_repeat():
    found = {way.name: way for way in ways(4, 2.0, mean=5.0)}
    assert found["repeat, Poisson"].tuning == tuning.repeat_and_select(5.0, math.inf)
    assert [way.runs for way in found.values()] == [1, 8, 4, 5, 5, 5, 4]


@pytest.mark.parametrize(
    ("train", "expected", "steps"),
    [
        ({"batch_size": 10}, Poisson(10, 333), 10),
        (
            {"batch_size": 10, "sampling": "truncated", "max_size": 30},
            TruncatedPoisson(10, 333, 30),
            10,
        ),
        ({"batch_size": 10, "sampling": "fixed"}, FixedSize(10, 333), 10),
        ({"sampling": "full"}, FullBatch(333), 30),
        ({"sampling": "full", "examples": None}, FullBatch(), 30),
    ],
)
def test_parts_keep_batches_and_epochs(train, expected, steps):
    train = {"examples": 1000, "steps": 30, **train}
    part = part_of(request(**train), 3).asked()
    assert part.sampling == expected
    assert (part.steps, part.delta) == (steps, 1e-5)
    epoch = 1 if isinstance(expected, FullBatch) else 33.3
    assert part.mechanism.noise_multiplier.steps_per_epoch == pytest.approx(epoch)


def request(examples, **train):
    privacy = {"delta": 1e-5, "accountant": "rdp"}
    method = {"name": "zhang_adaptive", "noise_multiplier": 1.0}
    plain = {"train": train, "privacy": privacy, "method": method}
    return Request(Experiment.from_plain({**plain, "data": {"examples": examples}}))


def test_parts_of_too_little_data():
    with pytest.raises(ValueError, match="dataset_size = 2: expected at least 3"):
        part_of(request(2, batch_size=1, steps=30), 3)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--start", "3"), "start = 3: expected 0"),
        (("--relation", "replace_one"), "relation = 'replace_one': expected 'add_or_remove_one'"),
        (("--candidates", "0"), "candidates = 0: expected an integer >= 1"),
        (("--mean", "0.5"), "mean = 0.5: expected at least 1"),
        (("--method", "auto_dp_sgd"), "auto_dp_sgd_sound"),
    ],
)
def test_what_is_not_accounted_is_refused(capsys, flags, names):
    assert names in refused(capsys, [*TUNE, *flags])


def test_required_fields_are_named(capsys):
    assert "candidates: missing; expected --candidates" in refused(capsys, TUNE[:-2])
