"""Eight virtual devices for the sharding tests, and how programs are compiled.

These are set before JAX starts its backend.
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

# Jaxprs consist of many small objects, most of which stay alive; scanning them again and again took
# 3% of the time.
gc.set_threshold(50_000, 20, 20)

# Tests of bits and bounds, and tests that draw 100,000 releases, compile programs as they
# are compiled for users. Other tests compile without most optimizations, unless their programs run
# for longer than that saves, and, except for gradients, with XLA's older code generator. It takes
# half the time, but its programs are slower, and it miscompiles a scatter with uint8 indices into
# more than 256 rows.
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
    """Returns whether a file's programs are optimized, and whether the newer generator is used."""
    here = Path(__file__).parent
    if not path.is_relative_to(here):  # doctests
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


# JAX has no setting for this, and XLA reads its flags only once per process.
compiler.get_compile_options = _compile_options


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Chooses how programs are compiled before any fixture compiles one, even a module's."""
    wanted = _compilation(item.path)
    if wanted != COMPILATION["now"]:
        jax.clear_caches()  # otherwise programs compiled in the other way would be reused
        jax.config.update("jax_disable_most_optimizations", not wanted[0])
        COMPILATION["now"] = wanted


def pytest_runtest_teardown():
    """Drops compiled programs when there are too many."""
    if COMPILED["unlooked"] > 30 and _crowded():
        jax.clear_caches()


# Programs compiled since memory maps were last counted, which takes 20 ms: too long for each test.
# Programs of large networks have hundreds of maps.
COMPILED = {"unlooked": 0}


def _count_compiled(event: str, _seconds: float, **_: object) -> None:
    COMPILED["unlooked"] += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count_compiled)


def _crowded() -> bool:
    """Returns whether compiled programs fill most of the 65,530 memory maps that Linux allows.

    A compilation that exceeds them kills the process.
    """
    COMPILED["unlooked"] = 0
    maps = Path("/proc/self/maps")
    return maps.exists() and maps.read_bytes().count(b"\n") > 30_000


def pytest_sessionfinish(session):
    """Deletes old programs from the store, once per run."""
    if not hasattr(session.config, "workerinput"):
        store.clean()


def _repeated() -> dict[str, list[str]]:
    """Returns the parameters kept in the default run, for test functions that keep only some."""
    table = tomllib.loads((Path(__file__).parent / "repeated.toml").read_text())
    return {
        f"tests/{file}.py::{name}": kept
        for file, names in table.items()
        for name, kept in names.items()
    }


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks repetitions as slow, except those that mutants rely on."""
    repeated = _repeated()
    for item in items:
        function, _, parameters = item.nodeid.partition("[")
        kept = repeated.get(function)
        if kept is not None and parameters.removesuffix("]") not in kept:
            item.add_marker(pytest.mark.slow)
