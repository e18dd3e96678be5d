"""What a careless or hostile caller may pass, as hypothesis strategies."""

import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

TINY, HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

any_float = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True),
    st.sampled_from([0.0, -0.0, 1.0, 5e-324, TINY, 1e-45, 1e-30, 1e30, HUGE, 1e39, 1e300]),
)

float32s = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, 1e-45, TINY, -HUGE, HUGE, np.inf, -np.inf, np.nan])
)

# Numbers that a person might mean, so that a good part of what is built is usable.
sane_float = st.floats(min_value=1e-4, max_value=1e4)

any_integer = st.one_of(
    st.integers(-3, 300), st.sampled_from([2**31 - 1, 2**31, 2**63, 10**30, 10**400, -(10**400)])
)

any_text = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "none", "nan", "1.0", "../..", "__import__('os')", "a\0b", "per_leaf"]),
)

# A key is shown as it is in a refusal; the command line escapes what cannot be printed.
keys = st.one_of(
    st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=8),
    st.sampled_from(["kind", "name", "options", "__class__", "../x", "1"]),
)

scalars = st.one_of(
    any_float,
    any_integer,
    any_text,
    st.sampled_from([None, True, False, 1j, b"1", 3 * Fraction(1, 7)]),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(-5, 5)),
)

anything = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.lists(scalars, max_size=3).map(tuple),
    st.dictionaries(keys, scalars, max_size=2),
    st.sampled_from([np.ones(2), jnp.ones(()), np.array("x"), object, object(), float]),
)

plain_scalars = st.one_of(any_float, st.integers(-(2**70), 2**70), any_text, st.booleans())

plain = st.recursive(
    plain_scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=6,
)
"""What TOML and JSON can hold."""

norms = st.one_of(
    st.floats(0.0, HUGE, width=32),
    st.sampled_from([0.0, 1e-45, 1e-40, TINY, 1.0, HUGE, np.inf, np.nan]),
)


def words_of(refusal: BaseException) -> str:
    """Returns what a refusal says, after checking that it is one sentence on one line."""
    text = str(refusal)
    assert text.strip(), repr(refusal)
    assert len(text.splitlines()) == 1, text
    return text


def built(make: Callable[..., Any], arguments: dict[str, Any], names: set[str]) -> Any:
    """Calls a constructor; returns None where it refuses, in a sentence with one of `names`."""
    refusal: Exception
    try:
        return make(**arguments)
    except (TypeError, ValueError) as error:
        refusal = error
    text = words_of(refusal)
    assert any(name in text for name in names), f"{refusal!r} names none of {sorted(names)}"
    return None


@st.composite
def changed(draw: Any, valid: dict[str, Any], most: int = 2) -> dict[str, Any]:
    """Draws arguments: valid ones, a few of which are replaced by numbers, sane or not, or junk."""
    arguments = dict(valid)
    kinds = (sane_float, any_float, any_float, any_integer, anything)
    for name in draw(st.lists(st.sampled_from(sorted(valid)), max_size=most, unique=True)):
        arguments[name] = draw(kinds[draw(st.integers(0, len(kinds) - 1))])
    return arguments


def defaults(make: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """Returns the arguments of a call: the defaults, and `given` for those that have none."""
    parameters = inspect.signature(make).parameters
    own = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    return own | {name: value for name, value in given.items() if name in parameters}
