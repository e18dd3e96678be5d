"""Every method in configs/ is read as it stands, and written back to the same plain data."""

import tomllib
from pathlib import Path

import pytest

import dpjax

FILES = sorted((Path(__file__).parent.parent / "configs" / "methods").glob("*.toml"))
EXPECTED = {
    "dc_sgd_e": dpjax.methods.dc_sgd_e(0.8414),
    "zhang_adaptive": dpjax.Mechanism(
        dpjax.rules.abadi(),
        (1.0, 0.5),
        dpjax.schedules.geometric(1.5, 60_000 / 256),
        groups={"body": "features", "head": "classifier"},
        name="zhang_adaptive",
    ),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_toml_is_the_method(path):
    plain = tomllib.loads(path.read_text())
    method = dpjax.Mechanism.from_plain(plain)
    assert method == EXPECTED[path.stem]
    assert method.to_plain() == plain


def test_a_typing_error_is_named():
    plain = tomllib.loads(FILES[0].read_text())
    plain["threshold"]["bin"] = plain["threshold"].pop("bins")
    with pytest.raises(ValueError, match=r"Mechanism.threshold.bin: unknown; did you mean"):
        dpjax.Mechanism.from_plain(plain)
