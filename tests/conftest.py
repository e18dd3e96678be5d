"""Eight virtual devices for the sharding tests, and a store of compiled programs.

Set before JAX starts its backend. Most of the tests' time goes into compiling, and many of them
compile the same program. Each worker has a store of its own: JAX does not write them atomically.
"""

import gc
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

# Jaxprs are many small objects, most of which stay: looking through them again took three seconds
# of a hundred.
gc.set_threshold(50_000, 20, 20)

# Where bits and bounds are tested, or a program runs for longer than it is compiled, programs are
# compiled as they are for users. Elsewhere the compiler leaves most of its optimizations out, which
# takes a quarter less time.
OPTIMISED = ("audit", "gradients", "testing", "endurance", "train")
NOT_OPTIMISED_FILES = (
    "test_edges",
    "test_equality",
    "test_jaxpr",
    "test_per_example",
    "test_random_programs",
    "test_refusals",
    "test_transformations",
)
OPTIMISED_FILES = (
    "test_audit",
    "test_devices",
    "test_fit",
    "test_groups_oracle",
    "test_noise",
    "test_privatize",
    "test_release",
    "test_run_to_event",
    "test_sampling",
    "test_sensitivity",
    "test_theorems",
    "test_twofloat",
)


@pytest.fixture(autouse=True)
def compiled_as_it_matters(request):
    here = Path(__file__).parent
    path = request.path.relative_to(here) if request.path.is_relative_to(here) else None
    optimised = path is not None and (
        (path.parts[0] in OPTIMISED and path.stem not in NOT_OPTIMISED_FILES)
        or path.stem in OPTIMISED_FILES
    )
    jax.config.update("jax_disable_most_optimizations", not optimised)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    if COMPILED["unlooked"] > 300 and _crowded():
        jax.clear_caches()


# Programs compiled since the maps were last counted, which takes 20 ms: too long for every test.
COMPILED = {"unlooked": 0}


def _count_compiled(event: str, _seconds: float, **_: object) -> None:
    COMPILED["unlooked"] += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count_compiled)


def _crowded() -> bool:
    """Says whether compiled programs fill most of the 65,530 memory maps that Linux allows.

    A compilation beyond that ends the process.
    """
    COMPILED["unlooked"] = 0
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
