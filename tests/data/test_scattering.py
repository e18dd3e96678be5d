"""The scattering transform against sums in space, Kymatio's numbers, and what it must do."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import data, models
from dpjax.data.base import Pixels
from dpjax.data.scattered import features
from dpjax.data.scattering import COEFFICIENTS, group_normalised, scattering
from tests.data.official import images, make_official, write_cifar, write_mnist

HEIGHT, WIDTH = 12, 16
REACH = 20  # beyond which the longest wavelet is below 1e-8 of its middle


transform = jax.jit(scattering)


def coefficients(x):
    """Returns the 81 paths of one grey image, in front."""
    return np.moveaxis(
        np.asarray(transform(jnp.asarray(x, jnp.float32)[None, :, :, None])[0]), 2, 0
    )


def wavelet(scale, angle):
    """Returns the Morlet wavelet of Bruna and Mallat on a large square, in space."""
    turn, sigma = (3 - angle) * math.pi / 8, 0.8 * 2**scale
    u, v = np.mgrid[-REACH : REACH + 1, -REACH : REACH + 1]
    along, across = math.cos(turn) * u + math.sin(turn) * v, math.cos(turn) * v - math.sin(turn) * u
    envelope = np.exp(-(along**2 + across**2 / 4) / (2 * sigma**2)) / (4 * math.pi * sigma**2)
    wave = envelope * np.exp(1j * 3 * math.pi / 4 / 2**scale * along)
    return wave - wave.sum() / envelope.sum() * envelope


def moduli(x, scale):
    """Returns |x * psi| for the eight angles: a sum over all shifts of a periodic image."""
    bank = np.stack([wavelet(scale, angle) for angle in range(8)])
    total = np.zeros((8, *x.shape), complex)
    for row in range(2 * REACH + 1):
        for column in range(2 * REACH + 1):
            shifted = np.roll(x, (row - REACH, column - REACH), (-2, -1))
            total += np.multiply.outer(bank[:, row, column], shifted)
    return np.moveaxis(np.abs(total), 0, -3)


def averaged(x, size, axis):
    """Averages an axis, of which some positions were left out before, to every fourth position.

    A Gaussian of width 1.6 has the Fourier transform exp(-(1.6 w)^2 / 2); of it the frequencies
    that the axis can carry are kept.
    """
    left = x.shape[axis]
    distance = np.arange(left)
    kernel = np.full(left, 1.0)
    for k in range(1, left // 2 + 1):
        gain = math.exp(-((1.6 * 2 * math.pi * k / size) ** 2) / 2)
        kernel += (1 + (k < left / 2)) * gain * np.cos(2 * math.pi * k * distance / left)
    kernel /= left
    wanted = range(4 * left // size, left - 1, 4 * left // size)
    moved = np.moveaxis(x, axis, -1)
    sums = [sum(kernel[(u - v) % left] * moved[..., v] for v in range(left)) for u in wanted]
    return np.moveaxis(np.stack(sums[: size // 4 - 2], -1), -1, axis)


def slow_scattering(x):
    padded = np.pad(np.asarray(x, float), 4, mode="reflect")
    height, width = padded.shape

    def averages(paths):
        both = averaged(averaged(paths, height, -2), width, -1)
        return both.reshape(-1, *both.shape[-2:])

    fine, coarse = moduli(padded, 0), moduli(padded, 1)[:, ::2, ::2]
    second = moduli(fine, 1)[..., ::2, ::2]
    return np.concatenate([averages(p) for p in (padded, fine, coarse, second)])


def test_equals_sums_in_space():
    x = np.random.default_rng(0).uniform(size=(HEIGHT, WIDTH))
    expected = slow_scattering(x)
    assert expected.shape == (COEFFICIENTS, HEIGHT // 4, WIDTH // 4)
    found = coefficients(x)
    largest = expected.max((1, 2), keepdims=True)
    np.testing.assert_allclose(found / largest, expected / largest, atol=2e-5)
    # Another order of the angles would be seen.
    assert np.abs(found[[1, 17]] / expected[[2, 18]] - 1).max() > 0.05


def test_equals_kymatio():
    """Kymatio 0.3.0, Scattering2D(J=2, shape=(12, 16)); it has 3.1415 for pi, to the power of 3."""
    i, j = np.mgrid[:HEIGHT, :WIDTH]
    found = coefficients((i * i + 3 * i * j + 5 * j) % 7 / 7)
    paths = [0, 1, 4, 8, 12, 16, 17, 40, 80]
    inside = [0.39588097, 0.07439572, 0.03422132, 0.04892709, 0.02250520, 0.03560345]
    inside += [0.01039089, 0.00253483, 0.00936257]
    corner = [0.36632895, 0.07351413, 0.03482278, 0.04295705, 0.02348670, 0.02487295]
    corner += [0.01028184, 0.00408640, 0.00421390]
    np.testing.assert_allclose(found[paths, 1, 2], inside, rtol=1e-4)
    np.testing.assert_allclose(found[paths, 0, 0], corner, rtol=1e-4)


def test_a_constant_image_has_its_average_and_nothing_else():
    found = coefficients(np.full((HEIGHT, WIDTH), 0.7))
    np.testing.assert_allclose(found[0], 0.7, rtol=1e-5)
    assert np.abs(found[1:]).max() < 1e-6


@pytest.mark.parametrize(("axis", "angle"), [(0, 3), (1, 7)])
def test_stripes_are_found_by_the_wavelet_across_them(axis, angle):
    stripes = np.cos(3 * math.pi / 4 * np.indices((48, 48))[axis])
    assert coefficients(stripes)[1:17].mean((1, 2)).argmax() == angle


def spot(row, column):
    """Returns an image that is zero but for a small texture."""
    x = np.zeros((48, 48))
    x[row : row + 6, column : column + 6] = np.random.default_rng(1).uniform(size=(6, 6))
    return x


def test_four_pixels_are_one_position():
    still, moved = coefficients(spot(20, 20)), coefficients(spot(24, 16))
    np.testing.assert_allclose(np.roll(still, (1, -1), (1, 2)), moved, atol=1e-5)
    assert moved[1:].max() > 0.01


def test_a_small_shift_changes_features_less_than_pixels():
    def change(a, b):
        return np.linalg.norm(a - b) / np.linalg.norm(a)

    pixels = change(spot(20, 20), spot(20, 21))
    assert change(coefficients(spot(20, 20)), coefficients(spot(20, 21))) < pixels / 2


def test_twice_the_light_is_twice_the_features():
    x = spot(20, 20)
    np.testing.assert_allclose(coefficients(2 * x), 2 * coefficients(x), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("shape", [(1, 30, 28, 1), (1, 28, 4, 1)])
def test_sides_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match=r"(height = 30|width = 4): expected a multiple of 4"):
        scattering(jnp.zeros(shape))


def test_group_normalisation():
    x = np.random.default_rng(2).normal(3, 2, (2, 5, 4, 6))
    expected = np.empty_like(x)
    for row in range(2):
        for group in (slice(0, 2), slice(2, 4), slice(4, 6)):
            own = x[row, :, :, group]
            expected[row, :, :, group] = (own - own.mean()) / np.sqrt(own.var() + 1e-5)
    np.testing.assert_allclose(
        group_normalised(jnp.asarray(x, jnp.float32), 3), expected, atol=1e-5
    )
    assert not np.any(group_normalised(jnp.ones((1, 2, 2, 6)), 3))
    with pytest.raises(ValueError, match="groups = 4: expected a divisor of 6"):
        group_normalised(jnp.zeros((1, 2, 2, 6)), 4)


UNIT = Pixels(255.0, (0.0,), (1.0,))


def test_features_of_an_example_are_its_own():
    x = images(3, 103, 8, 8, 1)  # more than one batch
    together = features(x, UNIT)
    for row in (0, 57, 102):
        np.testing.assert_array_equal(features(x[row : row + 1], UNIT)[0], together[row])
    np.testing.assert_array_equal(features(np.delete(x, 40, 0), UNIT), np.delete(together, 40, 0))
    black = features(np.zeros_like(x[:1]), UNIT)
    assert np.isfinite(black).all()


def test_features_are_normalised_colour_by_colour():
    x, (mean, std) = images(4, 2, 8, 12, 3), ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    found = features(x, Pixels(255.0, mean, std))
    assert (found.shape, found.dtype) == ((2, 2, 3, 243), np.float16)
    blue = slow_scattering((x[1, :, :, 2] / 255 - mean[2]) / std[2]).reshape(9, -1)
    centred = blue - blue.mean(1, keepdims=True)
    expected = centred / np.sqrt(blue.var(1, keepdims=True) + 1e-5)
    own = np.moveaxis(found[1, :, :, 162:], 2, 0).reshape(9, -1)
    np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-3)


def test_the_data_sets_read_the_original_files(monkeypatch, tmp_path):
    x, y = images(5, 5, 28, 28), np.array([9, 0, 3, 3, 1])
    write_mnist(tmp_path / "mnist", ((x[:3], y[:3]), (x[3:], y[3:])))
    make_official(monkeypatch, "mnist_scattering", tmp_path / "mnist", 3, 2)
    grey = data.load("mnist_scattering", tmp_path)
    assert (grey.name, grey.shape, grey.classes) == ("mnist_scattering", (7, 7, 81), 10)
    assert (grey.train.y.tolist(), grey.test.y.tolist()) == ([9, 0, 3], [3, 1])
    np.testing.assert_array_equal(grey.test.x, features(x[3:, :, :, None], UNIT))
    # Nothing is left to be scaled: features reach the network as they are.
    assert grey.pixels is None

    folder, colour = tmp_path / "cifar-10", images(6, 6, 32, 32, 3)
    for row, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        write_cifar(folder / f"{name}.bin", colour[row : row + 1], [row])
    make_official(monkeypatch, "cifar10_scattering", folder, 5, 1)
    loaded = data.load("cifar10_scattering", tmp_path)
    assert (loaded.train.x.shape, loaded.train.x.dtype) == ((5, 8, 8, 243), np.float16)
    assert loaded.test.y.tolist() == [5]


@pytest.mark.parametrize("engine", ["vmap", "ghost"])
def test_half_precision_features_have_gradients_in_float32(engine):
    network = models.build("linear", (2, 2, 81), 10)
    params = network.init(jax.random.key(0))
    x, y = np.random.default_rng(7).normal(size=(4, 2, 2, 81)).astype(np.float16), jnp.arange(4)

    def loss(params, example):
        return -jax.nn.log_softmax(network.apply(params, example[0]))[example[1]]

    def summed(x):
        grads = dpjax.per_example_grads(loss, engine=engine)(params, (jnp.asarray(x), y))
        return grads.norms, grads.weighted_sum(jnp.ones(4))

    half, single = jax.jit(summed)(x), jax.jit(summed)(x.astype(np.float32))
    for a, b in zip(jax.tree.leaves(half), jax.tree.leaves(single), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
