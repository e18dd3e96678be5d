"""What importing the package and asking for help load, and that names are where they were said."""

import json
import subprocess
import sys

import pytest

import dpjax

HEAVY = ("jax", "flax", "scipy", "dp_accounting", "orbax", "rich", "matplotlib", "sklearn")


def loaded_after(code):
    """Returns which of the heavy packages are loaded after some code, in a new process."""
    ask = f"import sys, json; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{ask}"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_loads_nothing():
    assert loaded_after("import dpjax; dpjax.__version__") == []


def test_the_core_needs_jax_alone():
    code = """
import jax.numpy as jnp, jax, optax, dpjax
method = dpjax.methods.dc_sgd_e(1.0)
tx = dpjax.privatize(method, 2, jax.random.key(0))
jax.jit(tx.update)(jnp.ones((2, 3)), tx.init(jnp.zeros(3)))
dpjax.sampling.Poisson(2, 8).draw(jax.random.key(0), 0)
"""
    assert loaded_after(code) == ["jax"]
    assert "dp_accounting" in loaded_after("import dpjax\ndpjax.accounting")  # can be told


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_without_jax(arguments):
    code = f"""
from dpjax.cli import main
try:
    main({arguments})
except SystemExit as stop:
    assert stop.code == 0
"""
    assert loaded_after(code) == []


def test_every_public_name_is_there():
    for name in dpjax.__all__:
        assert getattr(dpjax, name) is not None
        assert name in dir(dpjax)
    with pytest.raises(AttributeError, match="module 'dpjax' has no attribute 'privatise'"):
        _ = dpjax.privatise


def test_a_function_is_not_shadowed_by_its_file():
    code = """
import dpjax.privatize
from dpjax.privatize import PrivatizeState
import dpjax
assert callable(dpjax.privatize), dpjax.privatize
"""
    assert loaded_after(code) == ["jax"]
