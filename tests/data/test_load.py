"""Names, folders, missing files and wrong ones: what `load` says about them."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpjax import data
from dpjax.data import DATASETS, Dataset, File, Folder, Split
from tests.data.official import images, make_official, write_mnist

SPLITS = (
    (images(0, 3, 28, 28), np.array([1, 2, 3])),
    (images(1, 2, 28, 28), np.array([4, 5])),
)
CELEBA = ("male", "smiling", "attributes")
FIRST = "train-images-idx3-ubyte.gz"


@pytest.fixture
def mnist(monkeypatch, home):
    write_mnist(home / "mnist", SPLITS)
    make_official(monkeypatch, "mnist", home / "mnist", 3, 2)
    return home / "mnist"


def said(name, directory=None):
    with pytest.raises((ValueError, OSError)) as raised:
        data.load(name, directory)
    assert "\n" not in str(raised.value)
    return raised.value


def test_unknown_names_are_refused_with_the_nearest():
    assert "data set = 'cifar-10': did you mean 'cifar10'?" in str(said("cifar-10"))
    assert "did you mean 'celeba_male'?" in str(said("celeba"))
    assert "known: ag_news, ag_news_subset, celeba_attributes" in str(said("xyz"))


def test_a_missing_file_says_what_to_put_where(mnist, home):
    (mnist / FIRST).unlink()
    error = said("mnist", home)
    assert isinstance(error, FileNotFoundError)
    assert str(error) == (
        f"MNIST: {FIRST} (or train-images-idx3-ubyte) is missing; put what is missing into "
        f"{home}/mnist, or call dpjax.data.fetch('mnist', '{home}'), which downloads it"
    )


def test_many_missing_files(home):
    error = said("cifar10", home)
    assert "CIFAR-10: data_batch_1.bin and others are missing" in str(error)
    assert f"{home}/cifar-10" in str(error)


def test_what_cannot_be_fetched_says_where_it_is_from(home):
    error = str(said("celeba_smiling", home))
    assert "img_align_celeba and others are missing" in error
    assert "mmlab.ie.cuhk.edu.hk" in error
    assert "dpjax.data.fetch" not in error


def test_a_wrong_checksum_names_the_file_and_both_checksums(mnist, home):
    (mnist / FIRST).write_bytes(bytes((mnist / FIRST).stat().st_size))
    expected = DATASETS["mnist"].files[0].checksum
    error = str(said("mnist", home))
    assert error.startswith(f"{mnist / FIRST}: wrong checksum (sha256:")
    assert error.endswith(f"expected {expected})")


def test_a_wrong_size_is_seen_before_anything_is_read(mnist, home):
    (mnist / FIRST).write_bytes(b"x")
    size = DATASETS["mnist"].files[0].size
    assert str(said("mnist", home)) == f"{mnist / FIRST}: wrong size (1 bytes, expected {size})"


def test_a_wrong_number_of_examples_is_refused(monkeypatch, home):
    for name, count in (("train", 2), ("dev", 1)):
        path = home / "sst2" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sentence\tlabel\n" + "good\t1\n" * count)
    make_official(monkeypatch, "sst2", home / "sst2", 3, 1)
    assert str(said("sst2", home)) == f"{home}/sst2: 2 train examples, expected 3"
    (home / "sst2" / "dev.tsv").write_text("sentence\tlabel\n")
    make_official(monkeypatch, "sst2", home / "sst2", 2, 1)
    assert "0 test examples" in str(said("sst2", home))


def test_a_file_without_a_checksum_is_read(monkeypatch, mnist, home):
    files = tuple(File(entry.path) for entry in DATASETS["mnist"].files)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], files=files))
    assert data.status(files[0], mnist).state == "no published checksum"
    assert data.load("mnist", home).train.y.tolist() == [1, 2, 3]


def test_the_directory_is_the_argument_the_variable_or_the_cache(monkeypatch, mnist, home):
    monkeypatch.setenv("DPJAX_DATA", str(home))
    assert data.load("mnist").classes == 10
    assert data.data_directory("here") == Path("here")
    monkeypatch.setenv("DPJAX_DATA", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert data.data_directory() == Path("/home/somebody/.cache/dpjax")
    monkeypatch.setenv("DPJAX_DATA", "~/sets")
    assert data.data_directory() == Path("/home/somebody/sets")


def test_without_a_directory_none_is_suggested(monkeypatch, home):
    monkeypatch.setenv("DPJAX_DATA", str(home))
    assert str(said("svhn")).endswith("or call dpjax.data.fetch('svhn'), which downloads it")


def test_digits_are_the_public_ones_in_their_public_order():
    digits = data.load("digits", "/nowhere")
    assert (digits.train.x.shape, digits.test.x.shape) == ((1437, 8, 8, 1), (360, 8, 8, 1))
    assert (digits.train.x.dtype, digits.train.y.dtype) == (np.uint8, np.int32)
    assert digits.pixels == data.Pixels(16.0, (0.0,), (1.0,))
    labels = np.concatenate([digits.train.y, digits.test.y])
    images, classes = load_digits(return_X_y=True)
    np.testing.assert_array_equal(labels, classes)
    stored = np.concatenate([digits.train.x, digits.test.x])
    np.testing.assert_array_equal(stored.reshape(-1, 64), images)


def test_every_source_is_complete():
    assert len(DATASETS) == 25
    for name, source in DATASETS.items():
        assert (source.name, source.notes[-1]) == (name, ".")
        assert all(getattr(source, field.name) != "" for field in fields(source))
        for entry in source.files:
            if isinstance(entry, Folder):
                assert entry.count > 0
            for form in getattr(entry, "forms", ()):
                algorithm, _, digits = (form.checksum or "none:").partition(":")
                assert len(digits) == {"md5": 32, "sha1": 40, "sha256": 64, "none": 0}[algorithm]
        assert all(address.startswith("http") for address in source.addresses)
    assert {name for name, source in DATASETS.items() if not source.addresses} == {
        *(f"celeba_{what}{size}" for what in CELEBA for size in ("", "_full")),
        *("digits", "ag_news_subset", "cifar10_simclr"),
    }


def test_papers_sizes():
    """Lin et al., table C1; DC-SGD, appendix D; Auto DP-SGD, appendix B."""
    assert DATASETS["imagenette"].examples == (9469, 3925)
    for part, total in (("train", 9469), ("val", 3925)):
        own = [entry for entry in DATASETS["imagenette"].files if entry.path.startswith(part)]
        assert sum(entry.count for entry in own) == total
    assert DATASETS["svhn"].examples == (73_257, 26_032)
    assert DATASETS["qnli"].examples == (104_743, 5_463)
    assert DATASETS["ag_news"].examples == (4 * 30_000, 4 * 1_900)


def test_glues_sizes():
    """Wang et al., table 1, in thousands; the exact ones are those of its leader board's files."""
    assert DATASETS["mnli"].examples == (392_702, 9_815)
    assert DATASETS["qqp"].examples == (363_846, 40_430)
    for name, thousands in (("sst2", 67), ("qnli", 105), ("mnli", 393), ("qqp", 364)):
        assert round(DATASETS[name].examples[0] / 1000) == thousands


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 3], "train labels from 0 to 3: expected 0 to 2"),
        ([-1, 2], "train labels from -1 to 2: expected 0 to 2"),
        ([0], "2 train examples, 1 labels"),
    ],
)
def test_labels_without_a_class_are_refused(labels, message):
    """Out of range, a label would be clipped by the loss, and trained on silently."""
    x = np.zeros((2, 4), np.float32)
    good = Split(x, np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=message):
        Dataset("own", Split(x, np.asarray(labels, np.int32)), good, classes=3)
