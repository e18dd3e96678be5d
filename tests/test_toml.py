"""What is written as TOML is read back as it was."""

import math
import tomllib

import pytest

import dpjax
from dpjax import _toml as toml
from dpjax._record import Record
from tests.registry import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_back(name):
    method = METHODS[name](1.25)
    plain = tomllib.loads(toml.dumps(method.to_plain()))
    assert plain == method.to_plain()
    assert Record.from_plain(plain) == method


def test_groups_and_nested_records_come_back():
    curve = dpjax.schedules.scaled(dpjax.schedules.table((1.0, 0.1 + 0.2)), 1e-5 / 3)
    mechanism = dpjax.Mechanism(dpjax.rules.abadi(), (1.0, curve), curve, {"b": "x", "h": "y"})
    assert dpjax.Mechanism.from_plain(tomllib.loads(toml.dumps(mechanism.to_plain()))) == mechanism


@pytest.mark.parametrize(
    "text", ['"quoted" \\ back', "line\nbreak\ttab\r\b\f", "\x00\x1f\x7f", "ä 🎲"]
)
def test_any_string_comes_back_as_key_and_value(text):
    plain = {text: text, "table": {text: [text, {text: text}]}}
    assert tomllib.loads(toml.dumps(plain)) == plain


def test_values_keep_their_type():
    plain = {
        "i": 10**12,
        "f": 1e16,
        "b": True,
        "e": [],
        "t": {},
        "inf": math.inf,
        "deep": {"x": {}},
    }
    back = tomllib.loads(toml.dumps(plain))
    assert back == plain
    assert [type(value) for value in back.values()].count(float) == 2


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="x = None: expected a number"):
        toml.dumps({"x": None})
