"""Folders of JPEG images: cropped, resized, labelled; and what happens without Pillow."""

import sys

import numpy as np
import pytest

from dpjax import data
from dpjax.data.images import jpeg_images
from tests.data.official import images, make_official, same


def save_jpeg(path, array, mode=None):
    from PIL import Image  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(path, quality=100, subsampling=0)
    with Image.open(path) as stored:
        return np.asarray(stored.convert("RGB"))


@pytest.fixture
def pillow():
    pytest.importorskip("PIL")


def smooth(height, width):
    """A colour gradient, which JPEG and resizing keep."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows, columns, rows + columns], -1).astype(np.uint8)


def test_an_image_of_the_right_size_is_only_cropped(pillow, tmp_path):
    for height, width in ((40, 40), (40, 61), (70, 40)):
        stored = save_jpeg(tmp_path / "x.jpg", images(5, height, width, 3))
        top, left = (height - 40) // 2, (width - 40) // 2
        found = jpeg_images([tmp_path / "x.jpg"], 40, 40, crop=True)
        np.testing.assert_array_equal(found[0], stored[top : top + 40, left : left + 40])


def test_a_larger_image_is_averaged_down(pillow, tmp_path):
    stored = save_jpeg(tmp_path / "x.jpg", smooth(128, 64)).astype(float)
    found = jpeg_images([tmp_path / "x.jpg"], 16, 16, crop=True)[0].astype(float)
    means = stored[32:96].reshape(16, 4, 16, 4, 3).mean((1, 3))
    # Away from the border, a symmetric average of a gradient is its value in the middle.
    np.testing.assert_allclose(found[2:-2, 2:-2], means[2:-2, 2:-2], atol=2)


def test_without_a_crop_the_whole_image_is_stretched(pillow, tmp_path):
    stored = save_jpeg(tmp_path / "x.jpg", smooth(128, 64)).astype(float)
    found = jpeg_images([tmp_path / "x.jpg"], 16, 32)[0].astype(float)
    means = stored.reshape(16, 8, 32, 2, 3).mean((1, 3))
    np.testing.assert_allclose(found[2:-2, 2:-2], means[2:-2, 2:-2], atol=2)


def test_a_crop_has_the_shape_of_the_result(pillow, tmp_path):
    stored = save_jpeg(tmp_path / "x.jpg", images(6, 61, 40, 3))
    found = jpeg_images([tmp_path / "x.jpg"], 20, 40, crop=True)
    np.testing.assert_array_equal(found[0], stored[20:40])


def test_grey_and_cmyk_images_become_rgb(pillow, tmp_path):
    for mode in ("L", "CMYK"):
        save_jpeg(tmp_path / "x.jpg", smooth(8, 8), mode)
        assert jpeg_images([tmp_path / "x.jpg"], 8, 8).shape == (1, 8, 8, 3)


def write_imagenette(folder):
    """Writes one training image more in each class than in the one before it."""
    wnids = [entry.path.split("/")[1] for entry in data.DATASETS["imagenette"].files[:10]]
    stored = {"train": [], "val": []}
    for label, wnid in enumerate(wnids):
        for part, count in (("train", label + 1), ("val", 1)):
            for number in range(count):
                path = folder / part / wnid / f"{wnid}_{number}.JPEG"
                found = save_jpeg(path, images(7 * label + number, 160, 160, 3))
                stored[part].append((found, label))
    return stored


def test_imagenette(monkeypatch, pillow, tmp_path):
    stored = write_imagenette(tmp_path / "imagenette")
    make_official(monkeypatch, "imagenette", tmp_path / "imagenette", 55, 10)
    loaded = data.load("imagenette", tmp_path)
    for split, part in ((loaded.train, "train"), (loaded.test, "val")):
        x, y = zip(*stored[part], strict=True)
        same(split, np.stack(x), y)
    assert loaded.shape == (160, 160, 3)


def test_imagenette_counts_images_and_ignores_other_files(monkeypatch, pillow, tmp_path):
    folder = tmp_path / "imagenette"
    write_imagenette(folder)
    make_official(monkeypatch, "imagenette", folder, 55, 10)
    own = folder / "train" / "n01440764"
    (own / "._n01440764_0.JPEG").write_bytes(b"resource fork")
    (own / "readme.txt").write_text("no image")
    assert len(data.load("imagenette", tmp_path).train.y) == 55
    save_jpeg(own / "more.JPEG", smooth(160, 160))
    with pytest.raises(ValueError, match=r"n01440764: wrong count \(2 JPEG images, expected 1"):
        data.load("imagenette", tmp_path)


def test_damaged_jpegs(pillow, tmp_path):
    from PIL import Image  # noqa: PLC0415

    path = tmp_path / "x.jpg"
    save_jpeg(path, images(8, 64, 64, 3))
    whole = path.read_bytes()
    Image.fromarray(smooth(8, 8)).save(tmp_path / "x.png")
    for content in (b"", whole[: len(whole) // 2], b"GIF89a", (tmp_path / "x.png").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.jpg: not a readable JPEG image"):
            jpeg_images([path], 8, 8)
    with pytest.raises(ValueError, match=r"gone\.jpg: not a readable JPEG image"):
        jpeg_images([tmp_path / "gone.jpg"], 8, 8)


def test_without_pillow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install dpjax\[images\]"):
        jpeg_images([tmp_path / "x.jpg"], 8, 8)


NAMES = [f"{number:06}.jpg" for number in range(1, 7)]
PARTS = "001202"


def write_celeba(folder, parts=None, attributes=None):
    stored = {}
    for number, name in enumerate(NAMES):
        square = np.full((218, 178, 3), 40 * number, np.uint8)
        stored[name] = save_jpeg(folder / "img_align_celeba" / name, square)[0, 0]
    lines = [f"{name} {part}\n" for name, part in zip(NAMES, PARTS, strict=True)]
    (folder / "list_eval_partition.txt").write_text(parts or "".join(lines))
    rows = [f"{name} {1 if i % 2 else -1:2} {1 if i > 3 else -1:2}" for i, name in enumerate(NAMES)]
    text = "\n".join(["6", "Male Smiling ", *rows, ""])
    (folder / "list_attr_celeba.txt").write_text(attributes or text)
    return stored


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("celeba_male", [0, 1, 0], [1, 1]), ("celeba_smiling", [0, 0, 1], [0, 1])],
)
def test_celeba(monkeypatch, pillow, tmp_path, name, train, test):
    stored = write_celeba(tmp_path / "celeba")
    make_official(monkeypatch, name, tmp_path / "celeba", 3, 2)
    loaded = data.load(name, tmp_path)
    for split, rows, labels in ((loaded.train, (0, 1, 4), train), (loaded.test, (3, 5), test)):
        colours = np.stack([stored[NAMES[row]] for row in rows])
        same(split, np.broadcast_to(colours[:, None, None], (len(rows), 64, 64, 3)), labels)
    assert loaded.classes == 2


def test_celeba_at_full_size_is_as_stored(monkeypatch, pillow, tmp_path):
    write_celeba(tmp_path / "celeba")
    stored = save_jpeg(tmp_path / "celeba" / "img_align_celeba" / NAMES[0], smooth(218, 178))
    make_official(monkeypatch, "celeba_male_full", tmp_path / "celeba", 3, 2)
    loaded = data.load("celeba_male_full", tmp_path)
    assert loaded.shape == (218, 178, 3)
    np.testing.assert_array_equal(loaded.train.x[0], stored)
    np.testing.assert_array_equal(loaded.train.y, [0, 1, 0])


def test_celeba_with_all_labels_at_once(monkeypatch, pillow, tmp_path):
    names = [f"A{i}" for i in range(40)]
    rows = [[1 if (i + j) % 3 == 0 else -1 for j in range(40)] for i in range(6)]
    lines = [f"{name} " + " ".join(map(str, row)) for name, row in zip(NAMES, rows, strict=True)]
    text = "\n".join(["6", " ".join(names), *lines, ""])
    write_celeba(tmp_path / "celeba", attributes=text)
    make_official(monkeypatch, "celeba_attributes", tmp_path / "celeba", 3, 2)
    loaded = data.load("celeba_attributes", tmp_path)
    assert (loaded.train.y.shape, loaded.classes) == ((3, 40), 40)
    np.testing.assert_array_equal(loaded.test.y, (1 + np.array(rows)[[3, 5]]) // 2)


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"parts": "000001.jpg 3\n"}, "line 1 is not an image and its part"),
        ({"parts": "../../etc/passwd 0\n"}, "line 1 names '../../etc/passwd', expected six digits"),
        ({"parts": "000001.jpg 0\n"}, "expected the same images as in"),
        ({"attributes": "6\nBald\n"}, "line 2 does not name the attribute Male"),
        (
            {"attributes": "6\nMale\n000001.jpg 0\n"},
            "line 3 is not an image and 1 attributes, -1 or 1",
        ),
        ({"attributes": "6\nMale\n000001.jpg 1 1\n"}, "line 3 is not an image and 1 attributes"),
    ],
)
def test_damaged_celeba_lists(monkeypatch, pillow, tmp_path, lists, said):
    write_celeba(tmp_path / "celeba", **lists)
    make_official(monkeypatch, "celeba_male", tmp_path / "celeba", 3, 2)
    with pytest.raises(ValueError) as raised:
        data.load("celeba_male", tmp_path)
    assert said in str(raised.value)
