"""Layers in float64 NumPy, written from their definitions."""

import numpy as np


def conv(x, kernel, bias=0.0, stride=1, padding=0):
    """Convolves (H, W, C) with (k, k, C, O): each output is a sum over its own window."""
    x = np.pad(np.asarray(x, np.float64), [(padding, padding), (padding, padding), (0, 0)])
    kernel = np.asarray(kernel, np.float64)
    side = kernel.shape[0]
    height = (x.shape[0] - side) // stride + 1
    width = (x.shape[1] - side) // stride + 1
    out = np.empty((height, width, kernel.shape[3]))
    for row in range(height):
        for column in range(width):
            top, left = row * stride, column * stride
            window = x[top : top + side, left : left + side]
            out[row, column] = np.tensordot(window, kernel, axes=3)
    return out + np.asarray(bias, np.float64)


def pool(reduce, x, window, stride, padding=0):
    """Reduces each window of (H, W, C)."""
    around = [(padding, padding), (padding, padding), (0, 0)]
    x = np.pad(np.asarray(x, np.float64), around, constant_values=-np.inf)
    rows = range(0, x.shape[0] - window + 1, stride)
    columns = range(0, x.shape[1] - window + 1, stride)
    return np.array(
        [[reduce(x[r : r + window, c : c + window], axis=(0, 1)) for c in columns] for r in rows]
    )


def group_norm(x, scale, bias, groups):
    """Normalises each group of channels of (H, W, C), group after group."""
    x = np.asarray(x, np.float64)
    out, size = np.empty_like(x), x.shape[-1] // groups
    for group in range(groups):
        part = x[..., group * size : (group + 1) * size]
        out[..., group * size : (group + 1) * size] = (part - part.mean()) / np.sqrt(
            part.var() + 1e-5
        )
    return out * np.asarray(scale, np.float64) + np.asarray(bias, np.float64)


def standardised(kernel, gain):
    """Standardises a kernel's weights, one output channel after the other."""
    kernel = np.asarray(kernel, np.float64)
    out = np.empty_like(kernel)
    for channel in range(kernel.shape[-1]):
        weights = kernel[..., channel]
        out[..., channel] = (weights - weights.mean()) / (weights.std() * np.sqrt(weights.size))
    return out * np.asarray(gain, np.float64)


def relu(x):
    return np.maximum(x, 0)


def dense(x, layer):
    return x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, layer):
    """Runs an LSTM over (T, E), step after step; returns its states (T, H)."""
    names = ("input_kernel", "recurrent_kernel", "input_bias", "recurrent_bias")
    w, u, b, b2 = (np.asarray(layer[name], np.float64) for name in names)
    h = c = np.zeros(u.shape[0])
    states = []
    for step in np.asarray(x, np.float64):
        i, f, g, o = np.split(step @ w + b + h @ u + b2, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states)
