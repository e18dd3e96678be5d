"""Eight virtual devices for the sharding tests; set before JAX starts its backend."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
