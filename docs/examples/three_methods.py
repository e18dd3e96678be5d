"""Trains a small Flax network on the digits with three methods, by changing one line."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import dpjax

N, STEPS = 1437, 200  # private examples, steps
EPSILON, DELTA = 6.0, 1e-4  # the budget of one run
sampling = dpjax.sampling.Poisson(batch_size=256, dataset_size=N)
digits = dpjax.data.load("digits")
x, y = jnp.asarray(digits.train.x.reshape(N, 64) / 16), jnp.asarray(digits.train.y)
held_out, labels = jnp.asarray(digits.test.x.reshape(-1, 64) / 16), digits.test.y

rngs = nnx.Rngs(0)
layers = nnx.Linear(64, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 10, rngs=rngs)
graph, params = nnx.split(nnx.Sequential(*layers))


def loss_fn(params, example):  # the loss of ONE example
    logits = nnx.merge(graph, params)(example[0])
    return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])


ledgers = []
for method in (dpjax.methods.dp_sgd(), dpjax.methods.auto_s(), dpjax.methods.dc_sgd_e()):
    mechanism = dpjax.calibrate(method, sampling, STEPS, EPSILON, DELTA)
    key = jax.random.key(len(ledgers))  # one noise never covers two signals
    fitted = dpjax.fit(
        loss_fn, params, (x, y), mechanism, sampling, optax.adam(3e-3), STEPS, key, chunk=64
    )
    accuracy = jnp.mean(nnx.merge(graph, fitted.params)(held_out).argmax(1) == labels)
    ledgers.append(fitted.ledger)
    print(f"{mechanism.name:9s} {accuracy:6.1%} of held-out digits right")

cost = dpjax.accounting.published_together(ledgers, DELTA)
print(
    f"epsilon at delta {DELTA}: each {max(cost.each):.3f}, all published {cost.all_published:.3f}"
)
