"""Trains a small Flax network on the digits with three methods, by changing one line."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

import dpjax

N, B, STEPS = 1437, 256, 200  # private examples, expected batch size, steps
EPSILON, DELTA = 6.0, 1e-4  # the budget of one run
sampling = dpjax.sampling.Poisson(batch_size=B, dataset_size=N)
images, labels = load_digits(return_X_y=True)
x, y = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)


def train(method, key):
    rngs = nnx.Rngs(dpjax.noise.stream(key, "init"))
    layers = nnx.Linear(64, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 10, rngs=rngs)
    graph, params = nnx.split(nnx.Sequential(*layers))
    tx = optax.chain(method.transformation(B, key), optax.adam(3e-3))

    def loss_fn(params, example):  # the loss of ONE example
        logits = nnx.merge(graph, params)(example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    def step(carry, t):
        params, state = carry
        drawn = sampling.draw(key, t)
        grads_of = dpjax.per_example_grads(method.loss(loss_fn, state), chunk=64)
        grads = grads_of(params, (x[:N], y[:N]), drawn)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(STEPS))
    return jnp.mean(nnx.merge(graph, params)(x[N:]).argmax(1) == y[N:])


ledgers = []
for uncalibrated in (
    dpjax.methods.dp_sgd(noise_multiplier=1.0, threshold=1.0),
    dpjax.methods.auto_s(noise_multiplier=1.0),
    dpjax.methods.dc_sgd_e(noise_multiplier=1.0),
):
    method = dpjax.accounting.calibrate(uncalibrated, sampling, STEPS, EPSILON, DELTA)
    key = jax.random.key(len(ledgers))  # one noise never covers two signals
    accuracy = jax.jit(train, static_argnums=0)(method, key)
    ledgers.append(dpjax.accounting.Ledger("digits").add_steps(method, sampling, STEPS))
    print(f"{method.name:9s} {accuracy:6.1%} of held-out digits right")

cost = dpjax.accounting.published_together(ledgers, DELTA)
print(
    f"epsilon at delta {DELTA}: each {max(cost.each):.3f}, all published {cost.all_published:.3f}"
)
