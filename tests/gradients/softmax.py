"""A linear softmax classifier: its loss in JAX, its gradients derived by hand in float64.

``loss = logsumexp(z) - z_y`` with ``z = x w + b``, so with ``delta = softmax(z) - onehot(y)`` the
gradient of one example is ``dw = outer(x, delta)`` and ``db = delta``.
"""

import jax
import jax.numpy as jnp
import numpy as np

FEATURES, CLASSES = 5, 3
LABELS = {"b": "bias", "w": "kernel"}


def loss(params, example):
    logits = example["x"] @ params["w"] + params["b"]
    return jax.nn.logsumexp(logits) - logits[example["y"]]


def make_params(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "b": jnp.asarray(rng.standard_normal(CLASSES), jnp.float32),
        "w": jnp.asarray(rng.standard_normal((FEATURES, CLASSES)), jnp.float32),
    }


def make_data(rows, seed=1, spread=1.0):
    """Examples whose gradient norms spread over orders of magnitude, so that clipping matters."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(spread * rng.standard_normal((rows, 1)))
    return {
        "x": jnp.asarray(rng.standard_normal((rows, FEATURES)) * lengths, jnp.float32),
        "y": jnp.asarray(rng.integers(0, CLASSES, rows), jnp.int32),
    }


def gradients(params, data):
    """Returns (losses, gradients) of every example, one at a time in float64."""
    w, b = np.asarray(params["w"], np.float64), np.asarray(params["b"], np.float64)
    losses, dw, db = [], [], []
    for x, y in zip(np.asarray(data["x"], np.float64), np.asarray(data["y"]), strict=True):
        z = x @ w + b
        top = z.max()
        total = np.exp(z - top).sum()
        delta = np.exp(z - top) / total - np.eye(CLASSES)[y]
        losses.append(top + np.log(total) - z[y])
        dw.append(np.outer(x, delta))
        db.append(delta)
    shaped = lambda rows, shape: np.array(rows, np.float64).reshape(-1, *shape)  # noqa: E731
    return np.array(losses), {"b": shaped(db, (CLASSES,)), "w": shaped(dw, w.shape)}


def group_norms(grads):
    """Returns (n, 2) norms of the two leaves, in the order of the tree's leaves."""
    return np.array([[np.linalg.norm(b), np.linalg.norm(w)] for b, w in _rows(grads)]).reshape(
        -1, 2
    )


def norms(grads):
    return np.sqrt((group_norms(grads) ** 2).sum(axis=1))


def weighted_sum(grads, weights):
    """Returns ``sum_i weights[i] g_i``; weights (n,), or (n, 2) with one for each leaf."""
    total = {"b": np.zeros(CLASSES), "w": np.zeros((FEATURES, CLASSES))}
    weights = np.asarray(weights, np.float64)
    for (b, w), weight in zip(_rows(grads), weights, strict=True):
        of_b, of_w = np.broadcast_to(weight, 2)
        total["b"] += of_b * b
        total["w"] += of_w * w
    return total


def _rows(grads):
    return zip(grads["b"], grads["w"], strict=True)
