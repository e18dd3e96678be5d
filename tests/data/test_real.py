"""Published facts about the real files, where DPJAX_DATA has them."""

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from dpjax import data
from dpjax.data.names import ALPHABET


@pytest.fixture
def loaded(request):
    """Loads a data set, or skips if its files are not here."""
    if not os.environ.get("DPJAX_DATA"):
        pytest.skip("DPJAX_DATA is not set")
    try:
        return data.load(request.param)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def of(name):
    return pytest.mark.parametrize("loaded", [name], indirect=True)


def counts(split):
    return np.bincount(split.y).tolist()


def check_pixels(dataset):
    """The constants are the mean and the deviation of all training pixels, as printed."""
    values = np.arange(256) / 255
    for channel, (mean, std) in enumerate(zip(*dataset.pixels[1:], strict=True)):
        pixels = dataset.train.x[..., channel].reshape(-1)
        share = np.bincount(pixels, minlength=256) / pixels.size
        assert share @ values == pytest.approx(mean, abs=6e-5)
        assert np.sqrt(share @ values**2 - (share @ values) ** 2) == pytest.approx(std, abs=6e-5)


@of("mnist")
def test_mnist(loaded):
    check_pixels(loaded)
    assert counts(loaded.train) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(loaded.test) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert loaded.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert loaded.shape == (28, 28, 1)


@of("fashion_mnist")
def test_fashion_mnist(loaded):
    check_pixels(loaded)
    assert counts(loaded.train) == [6000] * 10
    assert counts(loaded.test) == [1000] * 10
    assert loaded.train.y[0] == 9  # an ankle boot


@of("cifar10")
def test_cifar10(loaded):
    check_pixels(loaded)
    assert counts(loaded.train) == [5000] * 10
    assert counts(loaded.test) == [1000] * 10
    assert loaded.train.y[:4].tolist() == [6, 9, 9, 4]  # a frog, two trucks, a deer
    assert loaded.train.x[0, 0, 0].tolist() == [59, 62, 63]
    assert loaded.test.y[:4].tolist() == [3, 8, 8, 0]  # a cat, two ships, an aeroplane


@of("names")
def test_names(loaded):
    both = np.bincount(np.concatenate([loaded.train.y, loaded.test.y]))
    assert both.sum() == 20_074
    # Arabic, English and Russian, as the tutorial's readers count them.
    assert (both[0], both[4], both[14]) == (2000, 3668, 9408)
    assert len(loaded.test.y) / both.sum() == pytest.approx(0.2, abs=0.01)
    for split, inside in ((loaded.train, False), (loaded.test, True)):
        texts = ["".join(ALPHABET[i - 1] for i in row if i) for row in split.x]
        assert all((zlib.crc32(text.encode()) % 5 == 0) is inside for text in texts)
    assert not {row.tobytes() for row in loaded.train.x} & {row.tobytes() for row in loaded.test.x}


@of("sst2")
def test_sst2(loaded):
    assert counts(loaded.train) == [29_780, 37_569]
    assert counts(loaded.test) == [428, 444]
    # Nothing is cut: the longest sentence is shorter than a row.
    assert not loaded.train.x[:, -1].any()


@of("ag_news_subset")
def test_ag_news_subset(loaded):
    assert counts(loaded.test) == [1900] * 4
    path = Path(os.environ["DPJAX_DATA"]) / "ag_news" / "train_desc_partial.tsv"
    assert len(loaded.train.y) == path.read_bytes().count(b"\n") - 1  # without the header
    assert min(counts(loaded.train)) > 9000
    # A word's number tells topics apart: "oil" is about business more than about sports.
    oil = (loaded.train.x == 2 + zlib.crc32(b"oil") % 16382).any(1)
    assert np.sum(oil & (loaded.train.y == 2)) > 20 * np.sum(oil & (loaded.train.y == 1))


@pytest.mark.parametrize(
    "loaded", ["cifar100", "svhn", "ag_news", "qnli", "mnli", "qqp", "imagenette"], indirect=True
)
def test_what_is_here_seldom(loaded):
    assert len(np.unique(loaded.train.y)) == loaded.classes
