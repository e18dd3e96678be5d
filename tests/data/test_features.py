"""Features from an .npz file."""

import numpy as np
import pytest

from dpjax import data
from dpjax.data.features import read_features
from tests.data.official import make_official

RNG = np.random.default_rng(0)
GOOD = {
    "x_train": RNG.normal(size=(4, 3)),
    "y_train": np.array([0, 9, 1, 2]),
    "x_test": RNG.normal(size=(2, 3)),
    "y_test": np.array([3, 4]),
}


def test_features_are_a_data_set(monkeypatch, tmp_path):
    folder = tmp_path / "cifar10-simclr"
    folder.mkdir()
    np.savez(folder / "features.npz", **GOOD)
    make_official(monkeypatch, "cifar10_simclr", folder, 4, 2)
    loaded = data.load("cifar10_simclr", tmp_path)
    np.testing.assert_array_equal(loaded.train.x, GOOD["x_train"].astype(np.float32))
    np.testing.assert_array_equal(loaded.test.y, [3, 4])
    assert (loaded.shape, loaded.classes, loaded.pixels) == ((3,), 10, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x_train": None}, "expected the arrays x_train, y_train, x_test, y_test, x_train is not"),
        ({"x_train": np.zeros((4, 2, 2))}, "x_train has shape"),
        ({"x_train": np.zeros((4, 3), int)}, "expected .n, d. reals"),
        ({"x_test": np.full((2, 3), np.nan)}, "x_test holds numbers that are not finite"),
        ({"x_test": np.zeros((2, 5))}, "3 features to train, 5 to test"),
        ({"y_train": np.array([0, 10, 1, 2])}, "train labels from 0 to 10: expected 0 to 9"),
        ({"x_train": np.array([{}, {}, {}, {}])}, "expected an .npz file of features"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changes, said):
    arrays = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    np.savez(tmp_path / "features.npz", **arrays)
    with pytest.raises(ValueError, match=said):
        read_features("features", tmp_path / "features.npz", 10)
