"""Eight virtual devices for the sharding tests, and a store of compiled programs.

Set before JAX starts its backend. Most of the tests' time goes into compiling, and many of them
compile the same program. Each worker has a store of its own: JAX does not write them atomically.
"""

import os
from pathlib import Path

import jax

STORE = Path(__file__).parents[1] / ".pytest_cache" / "compiled"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", str(STORE / WORKER))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
