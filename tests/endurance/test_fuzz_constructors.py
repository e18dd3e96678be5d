"""Mechanisms, methods, samplings of any arguments: usable, or refused by the name of a field.

What is usable: its noise and bounds are finite, it says what it protects, it survives plain data
and TOML, and `privatize` starts with it.
"""

import inspect
import json
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dpjax
from dpjax import _toml, rules, sampling, schedules, thresholds
from dpjax._record import Record
from dpjax.accounting import Budget, DeclaredQuery, GaussianQuery, LaplaceQuery, Ledger, Steps
from dpjax.adaclip import adaclip
from dpjax.methods.table import build_method, constructors
from dpjax.momentum import inner_outer, stored
from tests import registry
from tests.endurance.counting import count, examples
from tests.endurance.junk import any_integer, anything, built, changed, defaults, keys, plain

PARAMS = {"a": jnp.zeros(2), "b": jnp.zeros(())}
KEY = jax.random.key(0)
BATCH = 256.0

NEEDED = {
    "noise_multiplier": 1.0,
    "z": 3.0,
    "steps": 100,
    "steps_per_epoch": 10,
    "epochs": 10,
    "thresholds": (1.0, 0.8),
    "dataset_size": 64,
}


def is_plain(value):
    """Says whether a record holds no bare callable, which has no plain form."""
    if isinstance(value, Record):
        return all(is_plain(getattr(value, name)) for name in value.__dataclass_fields__)
    return not callable(value)


def check_mechanism(mechanism, names):
    """What a mechanism must be good for; a refusal may still come where B is known first."""
    assert isinstance(mechanism.guarantee.statement, str)
    if not mechanism.calibrated:
        return
    for step in (0, 2**31 - 1):
        assert np.isfinite(mechanism.sigma(step)), mechanism
    if is_plain(mechanism):
        text = _toml.dumps(mechanism.to_plain())
        assert dpjax.Mechanism.from_plain(tomllib.loads(text)) == mechanism
    tx = built(
        lambda sampling: dpjax.privatize(mechanism, sampling, KEY),
        {"sampling": BATCH},
        {"sampling", "expected_batch_size", "noise_multiplier"},
    )
    start = tx and built(tx.init, {"params": PARAMS}, {"groups", *names})
    if not start:
        return
    for leaf in jax.tree.leaves(start.released):
        assert np.all(np.isfinite(leaf)), mechanism
    assert np.all(start.released.bound > 0)
    noise = np.float32(start.released.sigma_gradient) * np.float32(start.released.bound)
    assert np.isfinite(noise), mechanism
    silent = not callable(mechanism.noise_multiplier) and mechanism.noise_multiplier == 0
    assert silent == (noise == 0), mechanism
    assert silent != mechanism.guarantee.private


@examples(150)
@given(data=st.data())
def test_methods_of_any_arguments(data):
    count("input", "dpjax.methods")
    name = data.draw(st.sampled_from(sorted(constructors())))
    make = constructors()[name]
    arguments = data.draw(changed(defaults(make, **NEEDED)))
    # A constructor's argument may be the field of a record under another name.
    also = {"groups", "init", "c0", "rho", "threshold", "values", "decay", "length", "alpha"}
    method = built(make, arguments, {*arguments, *also})
    if method is None:
        return
    if not isinstance(method, dpjax.Mechanism):
        assert name == "auto_dp_sgd"
        return
    check_mechanism(method, set(arguments))
    if is_plain(method):
        assert dpjax.Mechanism.from_plain(json.loads(json.dumps(method.to_plain()))) == method
        assert dpjax.Mechanism.from_plain(tomllib.loads(_toml.dumps(method.to_plain()))) == method
        assert hash(dpjax.Mechanism.from_plain(method.to_plain())) == hash(method)


RECORDS = [*registry.RULES.values(), *registry.THRESHOLDS.values(), *registry.SCHEDULES.values()]
whatever = st.one_of(st.sampled_from(RECORDS), st.sampled_from([lambda t: 1.0 / (1 + t)]), anything)


@examples(150)
@given(data=st.data())
def test_mechanisms_of_any_arguments(data):
    count("input", "dpjax.Mechanism")
    arguments = data.draw(
        changed({"rule": rules.abadi(), "threshold": 1.0, "noise_multiplier": 1.0, "groups": None})
    )
    for name in data.draw(st.lists(st.sampled_from(sorted(arguments)), max_size=1)):
        arguments[name] = data.draw(whatever)
    mechanism = built(dpjax.Mechanism, arguments, set(arguments))
    if mechanism is not None:
        check_mechanism(mechanism, set(arguments))


@examples(100)
@given(data=st.data())
def test_mechanisms_with_hooks(data):
    count("input", "dpjax.Mechanism")
    arguments = {
        "rule": rules.abadi(),
        "threshold": 1.0,
        "noise_multiplier": 1.0,
        "momentum": inner_outer(),
        "preconditioner": adaclip(),
        "name": "own",
    }
    mechanism = built(dpjax.Mechanism, data.draw(changed(arguments)), set(arguments))
    if mechanism is not None and is_plain(mechanism):
        assert dpjax.Mechanism.from_plain(mechanism.to_plain()) == mechanism


OTHERS = {
    inner_outer: {"gamma0": 0.5, "length": 1, "gamma1": 0.1},
    stored: {"gamma": 0.5, "dataset_size": 64},
    adaclip: defaults(adaclip),
    GaussianQuery: {"what": "a count", "noise_multiplier": 2.0, "count": 1},
    LaplaceQuery: {"what": "a count", "noise_multiplier": 2.0, "count": 1},
    DeclaredQuery: defaults(DeclaredQuery, what="a count", epsilon=1.0),
    Ledger: defaults(Ledger, dataset="digits"),
    Steps: {
        "mechanism": dpjax.methods.dp_sgd(1.0),
        "sampling": sampling.Poisson.with_rate(0.1),
        "steps": 10,
        "start": 0,
    },
    Budget: defaults(Budget, epsilon=1.0, delta=1e-5),
    sampling.Poisson: {"batch_size": 3, "dataset_size": 7},
    sampling.TruncatedPoisson: {"batch_size": 3, "dataset_size": 7, "max_size": 5},
    sampling.FixedSize: {"size": 3, "dataset_size": 7},
}


@examples(250)
@given(data=st.data(), make=st.sampled_from(list(OTHERS)))
def test_other_records_of_any_arguments(data, make):
    count("input", "sampling, queries, ledger, momentum, AdaCliP, budget")
    arguments = data.draw(changed(OTHERS[make]))
    record = built(make, arguments, set(arguments))
    if isinstance(record, Record):
        assert type(record).from_plain(json.loads(json.dumps(record.to_plain()))) == record


SAMPLINGS = [
    sampling.Poisson(1, 7),
    sampling.Poisson(2.8, 7),
    sampling.Poisson(7, 7),
    sampling.TruncatedPoisson(6.3, 7, 2),
    sampling.TruncatedPoisson(7, 7, 7),
    sampling.FixedSize(1, 7),
    sampling.FixedSize(7, 7),
    sampling.FullBatch(7),
]


@examples(60)
@given(record=st.sampled_from(SAMPLINGS), seed=st.integers(0, 2**32 - 1))
def test_batches_are_rows_once_each_in_order(record, seed):
    count("input", "sampling.draw")
    rows = record.draw(jax.random.key(seed), seed % 5).rows()
    assert np.array_equal(rows, np.unique(rows))
    assert rows.size == 0 or (rows[0] >= 0 and rows[-1] < 7)
    most = getattr(record, "max_size", getattr(record, "size", 7))
    assert rows.size <= most
    if isinstance(record, sampling.FixedSize | sampling.FullBatch):
        assert rows.size == most


@examples(80)
@given(key=anything)
def test_keys_are_checked(key):
    count("input", "noise.checked_key")
    made = built(dpjax.noise.checked_key, {"key": key}, {"key"})
    assert made is None


KINDS = st.sampled_from(["abadi", "Mechanism", "adaclip", "table", "os.system", "object", "Record"])
FIELDS = st.sampled_from(["kind", "rule", "threshold", "noise_multiplier", "groups", "values"])
tables = st.dictionaries(FIELDS | keys, plain | KINDS, max_size=4).map(
    lambda table: {"kind": "Mechanism", **table}
)


@examples(200)
@given(table=tables | plain, facts=st.dictionaries(FIELDS, any_integer, max_size=2))
def test_plain_forms_of_any_shape(table, facts):
    """Only known records are built, whatever a table says."""
    count("input", "Record.from_plain, build_method")
    for family in (Record, dpjax.Mechanism, thresholds.Threshold):
        record = built(family.from_plain, {"plain": table}, {""})
        assert record is None or isinstance(record, family)
    if isinstance(table, dict):
        method = built(build_method, {"table": table, "facts": facts}, {"method"})
        assert method is None or hasattr(method, "transformation")


@examples(120)
@given(data=st.data(), method=st.sampled_from(sorted(registry.METHODS)))
def test_plain_forms_with_a_part_replaced(data, method):
    count("input", "Mechanism.from_plain, mutated")
    table = registry.METHODS[method](1.0).to_plain()
    part = table
    while data.draw(st.booleans()):
        inner = [value for value in part.values() if isinstance(value, dict)]
        if not inner:
            break
        part = data.draw(st.sampled_from(inner))
    key = data.draw(st.sampled_from(sorted(part)) | keys)
    part[key] = data.draw(plain)
    record = built(Record.from_plain, {"plain": table}, {""})
    assert record is None or Record.from_plain(record.to_plain()) == record


def test_every_public_constructor_is_fuzzed():
    """A new record, schedule or method cannot be forgotten here."""
    fuzzed = {*OTHERS, sampling.FullBatch}
    for room in (sampling, dpjax.accounting):
        for name in room.__all__:
            item = getattr(room, name)
            own = inspect.isclass(item) and issubclass(item, Record)
            assert not own or item in fuzzed or item is sampling.Sampling, name
    assert set(constructors()) == set(registry.METHODS)
    assert {type(s).__name__ for s in registry.SCHEDULES.values()} <= set(schedules.__all__)
