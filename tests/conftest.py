"""Eight virtual devices for the sharding tests, and how programs are compiled.

Set before JAX starts its backend.
"""

import gc
import tomllib
from pathlib import Path

import jax
import pytest
from jax._src import compiler

from tests import store

jax.config.update("jax_num_cpu_devices", 8)
store.install()

# Jaxprs are many small objects, most of which stay: looking through them again took three seconds
# of a hundred.
gc.set_threshold(50_000, 20, 20)

# Where bits and bounds are tested, or a hundred thousand releases are drawn, programs are compiled
# as they are for users. Elsewhere they are compiled without most optimizations, unless they run for
# longer than that takes, and, except for gradients, by XLA's older code generator. It takes half
# the time, but its programs are slower, and it gets a scatter with uint8 indices into more than 256
# rows wrong.
AS_FOR_USERS = ("audit", "gradients", "testing")
AS_FOR_USERS_FILES = (
    "test_audit",
    "test_devices",
    "test_groups_oracle",
    "test_noise",
    "test_privatize",
    "test_release",
    "test_run_to_event",
    "test_sampling",
    "test_sensitivity",
    "test_twofloat",
)
LONG = ("endurance", "train")
LONG_FILES = ("test_fit", "test_theorems")
COMPARED_WITH_A_TOLERANCE = (
    "test_edges",
    "test_equality",
    "test_jaxpr",
    "test_per_example",
    "test_random_programs",
    "test_refusals",
    "test_transformations",
)


def _compilation(path: Path) -> tuple[bool, bool]:
    """Says if a file's programs are compiled with optimizations, and by the newer generator."""
    here = Path(__file__).parent
    if not path.is_relative_to(here):  # the examples in docstrings
        return (path.parent.name == "audit",) * 2
    folder = path.relative_to(here).parts[0]
    if path.stem in COMPARED_WITH_A_TOLERANCE:
        return False, True
    as_for_users = folder in AS_FOR_USERS or path.stem in AS_FOR_USERS_FILES
    return as_for_users or folder in LONG or path.stem in LONG_FILES, as_for_users


COMPILATION = {"now": (True, True)}
OPTIONS_OF_JAX = compiler.get_compile_options


def _compile_options(*args, **kwargs):
    options = OPTIONS_OF_JAX(*args, **kwargs)
    if not COMPILATION["now"][1]:
        own = [*options.env_option_overrides, ("xla_cpu_use_fusion_emitters", False)]
        options.env_option_overrides = own
    return options


# JAX has no setting for it, and XLA reads its flags once in a process.
compiler.get_compile_options = _compile_options


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Chooses how programs are compiled before any fixture, of a module too, compiles one."""
    wanted = _compilation(item.path)
    if wanted != COMPILATION["now"]:
        jax.clear_caches()  # else programs compiled in the other way would be used again
        jax.config.update("jax_disable_most_optimizations", not wanted[0])
        COMPILATION["now"] = wanted


def pytest_runtest_teardown():
    """Drops compiled programs before there are too many."""
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


def pytest_sessionfinish(session):
    """Deletes old programs, once in a run."""
    if not hasattr(session.config, "workerinput"):
        store.clean()


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
