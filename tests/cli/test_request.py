"""Files and flags make one request; what is unknown, wrong or contradictory is refused by name."""

from dataclasses import fields
from pathlib import Path

import pytest

import dpjax
from dpjax import data as data_sets
from dpjax.cli import _parser
from dpjax.cli.request import read_request
from dpjax.train import Experiment, resolve
from dpjax.train.plan import Setting
from tests.cli.calls import RUN, SMALL, data, printed, refused

EPSILON = ("epsilon", *SMALL)
SIZES = """
data = { name = "digits", examples = 1000 }
train = { batch_size = 10, steps = 50 }
privacy = { accountant = "rdp" }
"""
FILE = SIZES + "[method]\nname = 'dp_sgd'\nnoise_multiplier = 1.1\n"


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> list[str]:
        path = tmp_path / "request.toml"
        path.write_text(text)
        return ["epsilon", "--config", str(path)]

    return write


def test_flags_equal_file(capsys, written):
    assert data(capsys, written(FILE)) == data(capsys, EPSILON)


def test_plain_forms_equal_names(capsys, written):
    mechanism = (
        "kind = 'Mechanism'\nname = 'dp_sgd'\nrule = { kind = 'abadi' }\nthreshold = 1.0\n"
        "noise_multiplier = 1.1\n"
    )
    assert data(capsys, written(f"{SIZES}[method]\n{mechanism}")) == data(capsys, EPSILON)


def test_the_file_is_the_one_that_trains(capsys, written):
    """Other tables are for `dpjax train`; the size is the data set's own."""
    others = "[optimizer]\nname = 'sgd'\n[model]\nname = 'mlp'\n"
    found = data(capsys, written(FILE.replace(", examples = 1000", "") + others))
    assert found["sampling"] == dpjax.sampling.Poisson(10, 1437).to_plain()


def test_a_file_of_one_table_has_the_defaults_of_train(capsys, written):
    found = data(capsys, written("[method]\nname = 'dp_sgd'\nnoise_multiplier = 1.0"))
    assert found["sampling"] == dpjax.sampling.Poisson(256, 1437).to_plain()
    assert (found["steps"], found["results"][0]["accountant"]) == (57, "pld")


CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = [*CONFIGS.glob("accounting/*.toml"), *CONFIGS.glob("train/*.toml")]


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_commands_account_for_what_train_would_run(path):
    experiment = Experiment.from_file(path).set("train.steps", 20)  # calibrated fast
    size = experiment.data.examples or data_sets.DATASETS[experiment.data.name].examples[0]
    plan = resolve(experiment, size)
    args = _parser(["epsilon"]).parse_args(["epsilon", "--config", str(path), "--steps", "20"])
    found = read_request(args).resolved()
    for field in fields(Setting):
        assert getattr(found, field.name) == getattr(plan, field.name), field.name


def test_a_budget_stops_the_steps_that_are_priced(capsys):
    path = str(CONFIGS / "accounting" / "mnist_zhang_adaptive.toml")
    plan = resolve(Experiment.from_file(path), 60_000)
    argv = ["epsilon", "--config", path]
    found = data(capsys, argv)
    assert found["stopped_early"]
    assert found["steps"] == plan.steps < plan.asked
    assert "stopped by the budget" in printed(capsys, argv)
    (by_rdp,) = found["results"]
    (by_pld,) = data(capsys, [*argv, "--accountant", "pld"])["results"]  # of the same run
    assert by_pld["epsilon"] < 0.95 * by_rdp["epsilon"]
    late = [*argv, "--start", str(plan.steps), "--steps", "5"]
    assert f"start = {plan.steps}: expected fewer than" in refused(capsys, late)
    assert data(capsys, [*argv[:2], "digits", "--steps", "9", "--start", "5"])["steps"] == 9


def test_the_size_is_read_from_the_data_only_if_nothing_says_it(capsys, written, tmp_path):
    file = FILE.replace("digits", "own").replace("examples = 1000", f"path = '{tmp_path}/own.csv'")
    argv = [*written(file), "--batch-size", "2"]
    assert data(capsys, [*argv, "--dataset-size", "70"])["sampling"]["dataset_size"] == 70
    rows = "".join(f"{i},{i % 2},{'test' if i < 9 else 'train'}\n" for i in range(50))
    (tmp_path / "own.csv").write_text(f"x,label,split\n{rows}")
    assert data(capsys, argv)["sampling"]["dataset_size"] == 41


def test_a_file_may_be_a_method_alone(capsys, written):
    text = "kind = 'Mechanism'\nrule = { kind = 'abadi' }\nthreshold = 1.0\nnoise_multiplier = 9.0"
    found = data(capsys, [*written(text), "--noise-multiplier", "1.1", *EPSILON[5:]])
    assert found["results"] == data(capsys, EPSILON)["results"]


def test_flags_override_the_file(capsys, written):
    file = written(FILE)
    found = data(
        capsys, [*file, "--noise-multiplier", "2", "--epochs", "2", "--set", "threshold=3"]
    )
    assert found["method"] == dpjax.methods.dp_sgd(2.0, threshold=3.0).to_plain()
    assert found["steps"] == 200
    other = data(capsys, [*file, "--method", "psac", "--set", "r=0.5", "--noise-multiplier", "3"])
    assert other["method"] == dpjax.methods.psac(3.0, r=0.5).to_plain()
    full = data(capsys, [*file, "--sampling", "full", "--delta", "1/N"])
    assert full["sampling"] == {"kind": "FullBatch", "dataset_size": 1000}
    assert (full["delta"], full["delta_is_default"]) == (1 / 1000, False)


def test_constructors_get_what_the_request_knows(capsys, written):
    sizes = SIZES.replace("1000", "640").replace("= 10, steps = 50", "= 100, epochs = 5")
    decaying = (
        "[method]\nname = 'auto_dp_sgd_sound'\nnoise_multiplier = 2\ndecay = 'time'\nsigma_s = 9"
    )
    found = data(capsys, written(sizes + decaying))
    method = dpjax.methods.auto_dp_sgd_sound(
        2, steps_per_epoch=6.4, epochs=5, decay="time", sigma_s=9.0
    )
    assert dpjax.Mechanism.from_plain(found["method"]) == method


def test_arguments_may_be_records_and_groups(capsys, written):
    noise = "{ kind = 'geometric', init = 2.0, steps_per_epoch = 10 }"
    groups = "groups = { body = 'a', head = { kernel = 'b', bias = 'a' } }"
    text = f"{SIZES}[method]\nname = 'dp_sgd'\nnoise_multiplier = {noise}\n{groups}\n"
    found = data(capsys, written(f"{text}threshold = [1.0, {{ kind = 'table', values = [2.0] }}]"))
    expected = dpjax.methods.dp_sgd(
        dpjax.schedules.geometric(2.0, 10),
        (1.0, dpjax.schedules.table((2.0,))),
        {"body": "a", "head": {"kernel": "b", "bias": "a"}},
    )
    assert found["method"] == expected.to_plain()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("datset_size = 10\n" + FILE, "datset_size: unknown"),
        (FILE + "treshold = 1.0\n", "method.treshold: unknown; did you mean 'threshold'?"),
        (FILE.replace("dp_sgd", "dp_sgb"), "method.name = 'dp_sgb': did you mean 'dp_sgd'?"),
        (FILE.replace("1.1", "nan"), "noise_multiplier = nan: expected"),
        (FILE.replace("1.1", "'much'"), "noise_multiplier = 'much': expected a real number"),
        (FILE.replace("1.1", "2024-01-01"), "noise_multiplier = datetime.date(2024, 1, 1)"),
        (FILE.replace("1.1", "{ kind = 'abadi' }"), "noise_multiplier = abadi(): expected"),
        (FILE.replace("1.1", "{ kind = 'os' }"), "kind = 'os'"),
        (FILE.replace("= 50", "= 50.5"), "train.steps = 50.5: expected an integer"),
        (FILE.replace("= 1000", "= true"), "data.examples = True: expected an integer"),
        (
            FILE.replace("= 10,", "= 1001,"),
            "train.batch_size = 1001: expected at most the 1000",
        ),
        (FILE.replace('"rdp"', '"rdp", delta = nan'), "delta = nan: expected"),
        (FILE.replace('"rdp"', '"rdp", delta = "1/n"'), "delta = '1/n': expected"),
        (FILE.replace("= 50", "= 50, epochs = 3"), "epochs = 3.0, steps = 50: expected one"),
        (FILE.replace("= 50", "= 50, max_size = 3"), "max_size = 3 with sampling = 'poisson'"),
        (FILE.replace("= 50", "= 50, sampling = 'poison'"), "'poison': did you mean 'poisson'?"),
        (FILE.replace("= 50", "= 50, sampling = 3"), "train.sampling = 3: "),
        (FILE.replace('"rdp"', "3"), "privacy.accountant = 3: "),
        (FILE.replace('"rdp"', "'rpd'"), "privacy.accountant = 'rpd': did you mean 'rdp'?"),
        (SIZES + "method = 3", "method"),
        (SIZES, "method.noise_multiplier: missing; expected it, or privacy.epsilon"),
        (SIZES + "[method]\nnoise_multiplier = 1.0", "method.name = None"),
        (SIZES + "[method]\nkind = 'Poisson'\nrate = 0.1", "method: "),
        (SIZES + "[method]\nkind = 'Mechanis'", "did you mean 'Mechanism'?"),
        (SIZES + "[method]\nkind = 3", "expected a 'kind'"),
        (FILE.replace("digits", "digts").replace(", examples = 1000", ""), "mean 'digits'?"),
        (FILE.replace("digits", "mine:data").replace(", examples = 1000", ""), "--dataset-size"),
        (FILE.replace(", examples = 1000", ", path = 'no.npz'"), "no.npz: No such file"),
        (FILE.replace("steps = 50", "epochs = 1e300"), "epochs = 1e+300: expected fewer than"),
        ("steps = [", "expected TOML"),
        ("x = " + "[" * 5000, "recursion"),
    ],
)
def test_hostile_files_are_refused_by_name(capsys, written, text, names):
    assert names in refused(capsys, written(text))


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--set", "threshold"), "--set threshold: expected KEY=VALUE"),
        (("--set", "threshold=1 2"), "expected a TOML literal"),
        (("--set", "threshold=1\nother = 2"), "expected one value"),
        (("--set", "threshold=word"), "threshold = 'word': expected a real number"),
        (("--steps", "many"), "argument --steps: invalid int value: 'many'"),
        (("--delta", "small"), "argument --delta: invalid delta value: 'small'"),
        (("--delta", "nan"), "delta = nan: expected"),
        (("--dataset", "5"), "unrecognized arguments: --dataset"),
        (("--epochs", "3"), "train: epochs = 3.0, steps = 50: expected one"),
        (("--runs", "0"), "runs = 0: expected an integer >= 1"),
        (("--config", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_wrong_flags_are_refused_by_name(capsys, flags, names):
    assert names in refused(capsys, [*EPSILON, *flags])


def test_set_needs_a_constructor(capsys, written):
    plain = "[method]\nkind = 'Mechanism'\nnoise_multiplier = 1.0\n"
    assert "method.c0 with a method in plain form" in refused(
        capsys, [*written(SIZES + plain), "--set", "c0=2"]
    )
    assert "expected --method" in refused(capsys, ["epsilon", "--set", "c0=2"])


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (RUN[2:], "method: missing; expected --method NAME"),
        (RUN[:-2], "steps: missing; expected --steps or --epochs"),
        ((*RUN[:4], *RUN[6:]), "dataset_size: missing; expected --dataset-size"),
        ((*RUN[:6], *RUN[8:]), "batch_size: missing; expected --batch-size"),
        ((*RUN[:2], *RUN[4:]), "noise_multiplier: missing"),
        ((*RUN[:4], *RUN[8:], "--sampling", "full"), "dataset_size: missing"),
    ],
)
def test_without_an_experiment_the_flags_must_say_all(capsys, given, names):
    assert names in refused(capsys, ["epsilon", *given])


def test_a_missing_argument_is_named(capsys):
    assert "method.z: missing; global_ needs it" in refused(
        capsys, ["epsilon", "--method", "global_", *EPSILON[3:]]
    )


def test_commands_are_listed(capsys):
    with pytest.raises(SystemExit, match="0"):
        printed(capsys, ["--help"])
    help_text = capsys.readouterr().out
    assert all(name in help_text for name in ("epsilon", "calibrate", "tune-cost", "plot"))
    assert "invalid choice: 'epsilonn'" in refused(capsys, ["epsilonn"])
