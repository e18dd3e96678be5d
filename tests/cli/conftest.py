"""Commands that train compile the same programs again and again: here, each of them once."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture(autouse=True, scope="package")
def compiled_once(tmp_path_factory):
    cache = {"jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled"))}
    before = {name: getattr(jax.config, name) for name in (*SETTINGS, *cache)}
    for name, value in {**SETTINGS, **cache}.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
