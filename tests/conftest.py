"""Eight virtual devices for the sharding tests, and a store of compiled programs.

Set before JAX starts its backend. Most of the tests' time goes into compiling, and many of them
compile the same program. Each worker has a store of its own: JAX does not write them atomically.
"""

import os
import tomllib
from pathlib import Path

import jax
import pytest

STORE = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", str(STORE / WORKER))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Where bits and bounds are tested, programs are compiled as they are for users. Elsewhere the
# compiler leaves most of its optimizations out, which takes a quarter less time.
OPTIMISED = ("gradients", "testing", "endurance", "train")
OPTIMISED_FILES = (
    "test_devices",
    "test_fit",
    "test_groups_oracle",
    "test_noise",
    "test_privatize",
    "test_release",
    "test_sampling",
    "test_sensitivity",
    "test_theorems",
    "test_twofloat",
)


@pytest.fixture(autouse=True)
def compiled_as_it_matters(request):
    here = Path(__file__).parent
    path = request.path.relative_to(here) if request.path.is_relative_to(here) else None
    optimised = path is not None and (path.parts[0] in OPTIMISED or path.stem in OPTIMISED_FILES)
    jax.config.update("jax_disable_most_optimizations", not optimised)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    if _crowded():
        jax.clear_caches()


def _crowded() -> bool:
    """Says whether compiled programs fill most of the 65,530 memory maps that Linux allows.

    A compilation beyond that ends the process.
    """
    maps = Path("/proc/self/maps")
    return maps.exists() and maps.read_bytes().count(b"\n") > 40_000


def _repeated() -> dict[str, list[str]]:
    """Test functions of which the default run takes some parameters only, and which."""
    table = tomllib.loads((Path(__file__).parent / "repeated.toml").read_text())
    return {
        f"tests/{file}.py::{name}": kept
        for file, names in table.items()
        for name, kept in names.items()
    }


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Puts repetitions behind the slow marker; what mutants rely on stays."""
    repeated = _repeated()
    for item in items:
        function, _, parameters = item.nodeid.partition("[")
        kept = repeated.get(function)
        if kept is not None and parameters.removesuffix("]") not in kept:
            item.add_marker(pytest.mark.slow)
