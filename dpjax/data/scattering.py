"""The scattering transform of images: wavelets, moduli and averages, none of them learned.

With a wavelet psi_{j,theta} at scale 2^j and angle theta, and a Gaussian phi,

    S x = { x * phi,  |x * psi_{j,t}| * phi,  ||x * psi_{0,t}| * psi_{1,u}| * phi },

each at a quarter of the resolution. Two scales and eight angles give 1 + 16 + 64 = 81 numbers for
each channel and position. Filters and borders are Kymatio's.

References:
    Bruna and Mallat 2013, "Invariant scattering convolution networks"; Andreux et al. 2020,
    "Kymatio: scattering transforms in Python".
"""

import math
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["COEFFICIENTS", "group_normalised", "scattering"]

_SCALES, _ANGLES = 2, 8
_STRIDE = 2**_SCALES
_SIGMA = 0.8  # the wavelets' width at scale 1, in pixels
_SLANT = 4 / _ANGLES  # the ratio of a wavelet's length to its width
_FREQUENCY = 3 * math.pi / 4  # the wavelets' frequency at scale 1

COEFFICIENTS = 1 + _SCALES * _ANGLES + _ANGLES**2
"""The number of coefficients of a channel at each position: 81."""


def scattering(images: jax.Array) -> jax.Array:
    """Returns the scattering coefficients of images; jit-able.

    Args:
        images: float32 (n, H, W, C), with H and W multiples of 4 and at least 8.

    Returns:
        (n, H / 4, W / 4, 81 C): for each channel the average, then the first order by scale and
        angle, then the second order by first and second angle.

    Example:
        >>> jax.jit(scattering)(jnp.ones((2, 28, 28, 1))).shape
        (2, 7, 7, 81)
    """
    count, height, width, channels = images.shape
    for axis, size in (("height", height), ("width", width)):
        if size < 2 * _STRIDE or size % _STRIDE:
            raise ValueError(f"{axis} = {size}: expected a multiple of {_STRIDE}, at least 8")
    planes = jnp.moveaxis(images, 3, 1).reshape(-1, height, width)
    bank = _filter_bank(height, width)
    sides = height // _STRIDE, width // _STRIDE
    paths = _paths(planes, bank).reshape(count, channels * COEFFICIENTS, *sides)
    return jnp.moveaxis(paths, 1, 3)


def group_normalised(features: jax.Array, groups: int) -> jax.Array:
    """Returns features with mean 0 and variance 1 over each group of each example; jit-able.

    ``(x - mean_g) / sqrt(var_g + 1e-5)``, where a group g is all positions of some adjacent
    channels. Tramer and Boneh's "GroupNorm", with 27 groups.

    Privacy:
        Mean and variance are computed per example, so no example's features depend on another,
        neighbouring data sets stay neighbours, and nothing is spent. (Statistics of the whole
        training set, the paper's other option, are a release that needs noise.)

    Args:
        features: (n, H, W, K).
        groups: the number of groups into which the K channels are divided.
    """
    count, height, width, channels = features.shape
    if groups < 1 or channels % groups:
        raise ValueError(f"groups = {groups}: expected a divisor of {channels}, the channels")
    grouped = features.reshape(count, height, width, groups, channels // groups)
    mean = jnp.mean(grouped, axis=(1, 2, 4), keepdims=True)
    variance = jnp.var(grouped, axis=(1, 2, 4), keepdims=True)
    return ((grouped - mean) / jnp.sqrt(variance + 1e-5)).reshape(features.shape)


class _Averaging(NamedTuple):
    """``rows @ x @ columns.T`` is x * phi, at the output's positions and without its border."""

    rows: np.ndarray
    columns: np.ndarray

    def __call__(self, x: jax.Array) -> jax.Array:
        precision = jax.lax.Precision.HIGHEST  # float32 even where a device defaults to less
        return jnp.einsum("ah,...hw,bw->...ab", self.rows, x, self.columns, precision=precision)


class _FilterBank(NamedTuple):
    """The filters for one image size.

    Attributes:
        wavelets: for each scale, the wavelets' Fourier transforms, which are real: (angles, H', W')
            for the padded sides H' and W'.
        averaging: for each scale, the averaging of its wavelets' output; the first is also used
            for the image itself.
    """

    wavelets: tuple[np.ndarray, ...]
    averaging: tuple[_Averaging, ...]


def _paths(planes: jax.Array, bank: _FilterBank) -> jax.Array:
    """Returns the 81 averaged paths of planes (n, H, W), as (n, 81, H / 4, W / 4)."""
    around = (_STRIDE, _STRIDE)
    padded = jnp.pad(planes, ((0, 0), around, around), mode="reflect")
    zeroth = bank.averaging[0](padded)[:, None]
    spectrum = jnp.fft.fft2(padded)[:, None]
    fine = _modulus(spectrum, bank.wavelets[0], 1)
    coarse = _modulus(spectrum, bank.wavelets[1], 2)
    # A second wavelet that is not coarser than the first responds to almost nothing, so with two
    # scales there is only one pair.
    second = bank.averaging[1](_modulus(jnp.fft.fft2(fine)[:, :, None], bank.wavelets[1], 2))
    return jnp.concatenate(
        [
            zeroth,
            bank.averaging[0](fine),
            bank.averaging[1](coarse),
            second.reshape(len(planes), _ANGLES**2, *second.shape[3:]),
        ],
        axis=1,
    )


def _modulus(spectrum: jax.Array, wavelets: np.ndarray, stride: int) -> jax.Array:
    """Returns ``|x * psi|`` at every `stride`-th position, for each wavelet."""
    product = spectrum * wavelets
    height, width = wavelets.shape[1] // stride, wavelets.shape[2] // stride
    # Subsampling in space is averaging the aliases in Fourier space.
    folded = product.reshape(*product.shape[:-2], stride, height, stride, width)
    return jnp.abs(jnp.fft.ifft2(jnp.mean(folded, axis=(-4, -2))))


@cache
def _filter_bank(height: int, width: int) -> _FilterBank:
    sizes = height + 2 * _STRIDE, width + 2 * _STRIDE
    wavelets = tuple(
        np.stack([_wavelet(*sizes, scale, angle) for angle in range(_ANGLES)])
        for scale in range(_SCALES)
    )
    averaging = tuple(
        _Averaging(*(_average(size, scale) for size in sizes)) for scale in range(_SCALES)
    )
    return _FilterBank(wavelets, averaging)


def _wavelet(height: int, width: int, scale: int, angle: int) -> np.ndarray:
    """Returns the Fourier transform of a Morlet wavelet, which is real.

    ``psi(u) = g(u) (exp(i xi u) - beta)``, made periodic, with an elongated Gaussian g and beta
    such that psi has mean 0.
    """
    sigma, frequency = _SIGMA * 2**scale, _FREQUENCY / 2**scale
    turn = (_ANGLES // 2 - 1 - angle) * math.pi / _ANGLES
    wave = np.zeros((height, width), np.complex128)
    envelope = np.zeros((height, width))
    for down in range(-2, 3):
        for right in range(-2, 3):
            rows = np.arange(height)[:, None] + down * height
            columns = np.arange(width)[None, :] + right * width
            along = rows * math.cos(turn) + columns * math.sin(turn)
            across = columns * math.cos(turn) - rows * math.sin(turn)
            gaussian = np.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * sigma**2))
            envelope += gaussian
            wave += gaussian * np.exp(1j * frequency * along)
    psi = wave - wave.sum() / envelope.sum() * envelope
    psi /= 2 * math.pi * sigma**2 / _SLANT
    return np.fft.fft2(psi).real.astype(np.float32)


def _average(size: int, scale: int) -> np.ndarray:
    """Returns a matrix that averages one axis of the output of a wavelet of this scale.

    The two-dimensional Gaussian is a product of two one-dimensional ones. It is cut to the
    frequencies of the coarser axis; the first and the last position of the result are border and
    are dropped.
    """
    sigma = _SIGMA * 2 ** (_SCALES - 1)
    positions = np.arange(size) + size * np.arange(-2, 3)[:, None]
    gaussian = np.exp(-(positions**2) / (2 * sigma**2)).sum(0) / math.sqrt(2 * math.pi * sigma**2)
    left, stride = size // 2**scale, _STRIDE // 2**scale
    frequencies = np.fft.fftfreq(left, 1 / left).round().astype(int)
    kept = np.fft.fft(gaussian).real[frequencies]
    kernel = np.fft.ifft(kept).real
    output = stride * np.arange(1, size // _STRIDE - 1)
    return kernel[(output[:, None] - np.arange(left)) % left].astype(np.float32)
