"""Experiments: what files say is what runs, and what is unknown is refused by its nearest name."""

import math
import tomllib
from pathlib import Path

import jax.numpy as jnp
import pytest

import dpjax.papers.auto_dp_sgd  # noqa: F401 (a method that it makes known)
from dpjax.methods.table import constructors
from dpjax.train import Experiment, resolve
from dpjax.train.config import DIGITS
from dpjax.train.plan import build_optimizer
from tests.marks import some

ROOT = Path(__file__).parents[2] / "configs"
FILES = sorted(ROOT.glob("train/*.toml"))
SIZES = {"digits": 1437, "mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}
SIZES |= {"names": 16_000, "ag_news": 120_000, "mnist_scattering": 60_000}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_reads_and_its_resolved_form_reads_the_same(path):
    experiment = Experiment.from_file(path)
    again = Experiment.from_plain(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    build_optimizer(experiment.optimizer, steps=5000)
    size = SIZES[experiment.data.name]
    plan = resolve(experiment.set("train.steps", 20), size)  # calibration over few steps is fast
    resolved = plan.experiment
    assert Experiment.from_plain(tomllib.loads(resolved.to_toml())) == resolved
    assert resolve(resolved, size).experiment == resolved
    assert plan.delta == pytest.approx(
        1 / size if experiment.privacy.delta == "1/N" else experiment.privacy.delta
    )


@pytest.mark.parametrize("path", sorted(ROOT.glob("compare/*.toml")), ids=lambda path: path.stem)
def test_every_method_of_a_comparison_resolves(path):
    plain = tomllib.loads(path.read_text())
    methods_of = plain.pop("methods")
    assert len(methods_of) >= 5
    for name, arguments in methods_of.items():
        experiment = Experiment.from_plain({**plain, "method": {"name": name, **arguments}})
        noisy = {"method.noise_multiplier": 1.0, "privacy.epsilon": "none"}  # not calibrated: fast
        plan = resolve(experiment.with_values(noisy), SIZES[experiment.data.name])
        assert plan.method.name == name


def test_the_embedded_default_is_the_file():
    assert Experiment.from_file(ROOT / "train" / "digits.toml").identity == (
        DIGITS.set("method.threshold", 1.0).identity
    )


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"trian": {}}, "trian: unknown; did you mean 'train'"),
        ({"train": {"batchsize": 3}}, "train.batchsize: unknown; did you mean 'batch_size'"),
        ({"train": {"batch_size": 0, "epochs": 1}}, "train.batch_size = 0: expected"),
        ({"train": {"batch_size": 3, "epochs": float("nan")}}, "train.epochs = nan: expected"),
        ({"train": {"batch_size": 3}}, "expected one of them"),
        ({"train": {"epochs": 3}}, "train.batch_size: missing"),
        ({"train": {"batch_size": 3, "epochs": 1, "steps": 3}}, "expected one of them"),
        ({"train": {"batch_size": 3, "steps": 1, "sampling": "poison"}}, "did you mean 'poisson'"),
        ({"train": {"batch_size": 3, "steps": 1, "max_size": 9}}, "max_size = 9 with sampling"),
        ({"train": {"sampling": "full", "batch_size": 3, "steps": 1}}, "expected none"),
        ({"train": {"batch_size": 3, "steps": 1, "ema": 1.0}}, "train.ema = 1.0: expected"),
        ({"train": {"batch_size": 3, "steps": 1, "multiplicity": 2}}, "train.multiplicity = 2"),
        ({"privacy": {"delta": 2.0}}, "privacy.delta = 2.0: expected"),
        ({"privacy": {"epsilon": -1.0}}, "privacy.epsilon = -1.0: expected"),
        ({"privacy": {"accountant": "rpd"}}, "did you mean 'rdp'"),
        ({"data": {"name": "digits", "scale": "unti"}}, "did you mean 'unit'"),
        ({"optimizer": {"learning_rate": 0.0}}, "optimizer.learning_rate = 0.0: expected"),
        ({"run": {"seeds": 0}}, "run.seeds = 0: expected"),
        ({"run": {"seed": 2**32}}, "run.seed = 4294967296: expected less"),
        ({"run": {"seeds": 2, "mesh": {"data": 2}}}, "run.seeds = 2 with mesh"),
        ({"run": {"mesh": {"data": 0}}}, "run.mesh.data = 0: expected an integer >= 1"),
        (
            {"run": {"mesh": {"data": 2}, "sharding": {"*/kernel": ["", "modle"]}}},
            "run.sharding.*/kernel",
        ),
    ],
)
def test_refusals_name_the_field(plain, message):
    with pytest.raises(ValueError, match=message):
        Experiment.from_plain(plain)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"train": 3}, "train = 3: expected a table"),
        ({"data": {"name": 3}}, "data.name = 3: expected a name"),
        ({"train": {"batch_size": 2.5, "epochs": 1}}, "train.batch_size = 2.5: expected"),
        ({"model": {"trainable": "head"}}, "model.trainable = 'head': expected a list"),
        ({"run": {"diagnostics": 1}}, "run.diagnostics = 1: expected true or false"),
    ],
)
def test_refusals_of_types(plain, message):
    with pytest.raises(TypeError, match=message):
        Experiment.from_plain(plain)


def test_set_reaches_every_table():
    experiment = Experiment.from_plain({"method": "psasc"})
    assert experiment.method == {"name": "psasc"}
    assert experiment.set("method.r", 0.2).method == {"name": "psasc", "r": 0.2}
    assert experiment.set("method.r", 0.2).set("method.name", "auto_s").method == {"name": "auto_s"}
    assert experiment.set("model.hidden", 7).model.options == {"hidden": 7}
    assert experiment.set("train.steps", 5).train.epochs is None
    assert experiment.set("train.ema", 0.9).set("train.ema", "none").train.ema is None
    with pytest.raises(ValueError, match="tarin: unknown; did you mean 'train'"):
        experiment.set("tarin.steps", 5)
    with pytest.raises(ValueError, match="expected a path such as"):
        experiment.set("steps", 5)


def test_values_that_need_each_other_are_set_together():
    changes = {"train.sampling": "truncated", "train.max_size": 600}
    assert DIGITS.with_values(changes).train.max_size == 600
    with pytest.raises(ValueError, match="max_size"):
        DIGITS.set("train.max_size", 600)
    assert DIGITS.with_values(changes).set("train.sampling", "poisson") == DIGITS
    for name, value in (("train.max_size", 600), ("train.batch_size", 5)):
        with pytest.raises(ValueError, match=f"{name} = {value} with sampling = 'full'"):
            DIGITS.with_values({name: value, "train.sampling": "full"})


def test_identity_is_of_what_is_released():
    experiment = DIGITS
    assert experiment.set("run.seeds", 3).identity == experiment.identity
    assert experiment.set("run.seed", 3).identity == experiment.identity
    others = [
        experiment.set(path, value)
        for path, value in [
            ("data.scale", "unit"),
            ("model.hidden", 9),
            ("method.threshold", 2.0),
            ("optimizer.learning_rate", 0.5),
            ("train.batch_size", 255),
            ("privacy.epsilon", 3.0),
        ]
    ]
    assert len({other.identity for other in [experiment, *others]}) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy.epsilon": "none"}, "method.noise_multiplier: missing"),
        ({"train.batch_size": 5000}, "expected at most the 1437 examples"),
        ({"train.sampling": "fixed"}, "privacy.accountant = 'pld' with train.sampling = 'fixed'"),
        ({"method.name": "auto_dp_sgd"}, "has no guarantee, so no budget sets its noise"),
        ({"method.name": "psasc_momentum_full_batch"}, "expected 'full'"),
        ({"method.noise_multiplier": 0.3, "privacy.epsilon": 0.1}, "enough for one step"),
        ({"method.thresh": 1.0}, "method.thresh: unknown; did you mean 'threshold'"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_resolved(changes, message):
    experiment = DIGITS
    for path, value in changes.items():
        experiment = experiment.set(path, value)
    with pytest.raises(ValueError, match=message):
        resolve(experiment, 1437)


def test_a_budget_stops_a_run_that_has_its_own_noise():
    experiment = DIGITS.set("method.noise_multiplier", 2.0).set("privacy.accountant", "rdp")
    plan = resolve(experiment, 1437)
    assert plan.stopped_early
    assert plan.steps < 113
    ledger = plan.ledger()
    inside = ledger.add_steps(plan.method, plan.sampling, plan.steps)
    beyond = ledger.add_steps(plan.method, plan.sampling, plan.steps + 1)
    assert inside.epsilon(plan.delta, "rdp") <= 4.0 < beyond.epsilon(plan.delta, "rdp")


def test_calibrated_noise_spends_the_budget_and_no_more():
    plan = resolve(DIGITS.set("method.name", "dc_sgd_e"), 1437)
    spent = plan.ledger().add_steps(plan.method, plan.sampling, plan.steps).epsilon(plan.delta)
    assert 3.99 < spent <= 4.0


def test_mnist_noise_is_that_of_the_paper():
    """DC-SGD's setting at epsilon 2 by RDP: sigma .8414 (MECHANISMS of the papers' settings)."""
    plan = resolve(Experiment.from_file(ROOT / "train" / "mnist_dp_sgd.toml"), 60_000)
    assert plan.steps == 2344
    assert plan.method.noise_multiplier == pytest.approx(0.84140, abs=2e-4)


@pytest.mark.parametrize(
    "name",
    some(
        sorted(constructors()),
        [
            "dp_sgd",
            "dc_sgd_e",
            "auto_dp_sgd",
            "lin_transfer",
            "global_",
            "adaclip",
            "zhang_adaptive",
        ],
    ),
)
def test_every_method_resolves_by_name(name):
    experiment = DIGITS.set("method.name", name).set("train.steps", 12)
    if name == "auto_dp_sgd":
        experiment = experiment.set("privacy.epsilon", "none").set("method.noise_multiplier", 1.0)
    if name == "psasc_momentum_full_batch":
        experiment = experiment.set("train.sampling", "full")
    if name == "lin_transfer":
        experiment = experiment.set("method.thresholds", [1.0, 0.5, 0.3])
    if name == "global_":
        experiment = experiment.set("method.z", 2.0)
    plan = resolve(experiment, 1437)
    assert plan.method.name == name
    assert plan.steps == 12


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "adamx"}, "did you mean 'adam"),
        ({"name": "sgd", "momentun": 0.9}, "optimizer.momentun: unknown; did you mean 'momentum'"),
        ({"name": "system"}, "optimizer.name = 'system'"),
        ({"name": "lbfgs"}, "optimizer.name = 'lbfgs'"),
        (
            {"learning_rate": {"name": "cosine_decay"}},
            "optimizer.learning_rate.name = 'cosine_decay'",
        ),
        ({"learning_rate": {"name": "linear_schedule"}}, "init_value: missing"),
    ],
)
def test_optimizers_refuse_what_optax_does_not_know(table, message):
    config = Experiment.from_plain({"optimizer": table}).optimizer
    with pytest.raises(ValueError, match=message):
        build_optimizer(config, steps=10)


def rates(learning_rate, steps, count):
    table = {"name": "sgd", "learning_rate": learning_rate}
    tx = build_optimizer(Experiment.from_plain({"optimizer": table}).optimizer, steps)
    state, found = tx.init(jnp.float32(0)), []
    for _ in range(count):
        update, state = tx.update(jnp.float32(1), state)
        found.append(-float(update))
    return found


def test_schedules_end_with_the_run_unless_they_say_otherwise():
    cosine = {"name": "cosine_decay_schedule", "init_value": 0.5}
    expected = [0.25 * (1 + math.cos(math.pi * t / 4)) for t in range(5)]
    assert rates(cosine, steps=4, count=5) == pytest.approx(expected, abs=1e-6)
    own = {**cosine, "decay_steps": 2}
    assert rates(own, steps=4, count=3) == pytest.approx([0.5, 0.25, 0.0], abs=1e-6)
    stairs = {"name": "piecewise_constant_schedule", "init_value": 1.0}
    stairs["boundaries_and_scales"] = {"2": 0.1}
    assert rates(stairs, steps=4, count=4) == pytest.approx([1, 1, 0.1, 0.1], abs=1e-6)
    ramp = {**stairs, "name": "piecewise_interpolate_schedule", "interpolate_type": "linear"}
    ramp["boundaries_and_scales"] = {"2": 3.0, "4": 0.5}
    assert rates(ramp, steps=5, count=5) == pytest.approx([1, 2, 3, 2.25, 1.5], abs=1e-6)
