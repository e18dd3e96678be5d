"""Archives are unpacked safely: what leads out, links, bombs and damage are refused."""

import io
import tarfile
import zipfile
from dataclasses import replace

import pytest

from dpjax import data
from dpjax.data import DATASETS, Archive
from tests.data.official import images, make_official, names, sha256, write_cifar
from tests.data.server import serving


def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = tarfile.SYMTYPE, content
                file.addfile(info)
    return out.getvalue()


def zipped(*members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return out.getvalue()


@pytest.fixture
def cifar(monkeypatch, tmp_path):
    """Makes an archive of a tiny CIFAR-100 the official one; returns its files."""
    write_cifar(tmp_path / "origin" / "train.bin", images(2, 2, 32, 32, 3), [0, 1], [2, 3])
    write_cifar(tmp_path / "origin" / "test.bin", images(3, 1, 32, 32, 3), [4], [5])
    make_official(monkeypatch, "cifar100", tmp_path / "origin", 2, 1)
    return [
        (f"cifar-100-binary/{name}", (tmp_path / "origin" / name).read_bytes())
        for name in ("train.bin", "test.bin")
    ]


def fetch_archive(monkeypatch, home, content, name="cifar-100-binary.tar.gz"):
    archive = Archive(f"http://x/{name}", sha256(content), "cifar-100-binary", len(content))
    source = replace(DATASETS["cifar100"], archive=archive)
    monkeypatch.setitem(DATASETS, "cifar100", source)
    with serving({name: content}) as server:
        return data.fetch("cifar100", home, server.address)


@pytest.mark.parametrize("make", [tar, zipped])
def test_archives_are_unpacked_and_removed(monkeypatch, home, cifar, make):
    others = [("cifar-100-binary/readme.txt", b"x"), ("elsewhere/train.bin", b"y")]
    new = fetch_archive(monkeypatch, home, make(*others, *cifar))
    assert [path.name for path in new] == ["train.bin", "test.bin"]
    assert names(home / "cifar-100") == ["test.bin", "train.bin"]
    assert data.load("cifar100", home).train.y.tolist() == [2, 3]


@pytest.mark.parametrize("make", [tar, zipped])
@pytest.mark.parametrize(
    "name", ["../../evil", "/tmp/evil", "cifar-100-binary/../../../evil", "..\\evil", "C:evil"]
)
def test_hostile_archives_are_refused(monkeypatch, home, tmp_path, cifar, make, name):
    with pytest.raises(ValueError, match="leads out of the archive, refused"):
        fetch_archive(monkeypatch, home, make((name, b"evil"), *cifar))
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]
    assert "train.bin" not in names(home / "cifar-100")


def test_links_in_place_of_files_are_refused(monkeypatch, home, cifar):
    link = ("cifar-100-binary/train.bin", "/etc/passwd")
    with pytest.raises(ValueError, match=r"train\.bin' is not a plain file, refused"):
        fetch_archive(monkeypatch, home, tar(link, cifar[1]))


@pytest.mark.parametrize("make", [tar, zipped])
def test_archive_bombs_are_refused(monkeypatch, home, cifar, make):
    bomb = ("cifar-100-binary/bomb", bytes(30_000_000))
    with pytest.raises(ValueError, match="unpacks to more than 20 times its size"):
        fetch_archive(monkeypatch, home, make(bomb, *cifar))
    assert names(home / "cifar-100") == ["cifar-100-binary.tar.gz.part"]


def test_archives_without_the_right_files_are_refused(monkeypatch, home, cifar):
    with pytest.raises(ValueError, match=r"test\.bin in it is missing"):
        fetch_archive(monkeypatch, home, tar(cifar[0]))
    wrong = (cifar[1][0], bytes(len(cifar[1][1])))
    (home / "cifar-100" / "cifar-100-binary.tar.gz.part").unlink()
    with pytest.raises(ValueError, match=r"test\.bin in it is wrong checksum"):
        fetch_archive(monkeypatch, home, tar(cifar[0], wrong))


def test_damaged_archives_are_refused(monkeypatch, home, cifar):
    whole, zip_whole = tar(*cifar), zipped(*cifar)
    flipped = bytearray(zip_whole)
    flipped[200] ^= 255
    for content in (b"no archive", whole[: len(whole) // 2], bytes(flipped)):
        with pytest.raises(ValueError, match=r"damaged archive|in it is missing"):
            fetch_archive(monkeypatch, home, content)
        (home / "cifar-100" / "cifar-100-binary.tar.gz.part").unlink()
    assert names(home / "cifar-100") == []


def test_folders_of_images_are_unpacked(monkeypatch, home):
    source = DATASETS["imagenette"]
    files = tuple(replace(entry, count=2) for entry in source.files)
    members = [
        (f"imagenette2-160/{entry.path}/{number}.JPEG", b"%d" % number)
        for entry in files
        for number in range(2)
    ]
    members.append((f"imagenette2-160/{files[0].path}/._0.JPEG", b"resource fork"))
    content = tar(*members)
    archive = replace(source.archive, checksum=sha256(content), size=len(content))
    monkeypatch.setitem(DATASETS, "imagenette", replace(source, files=files, archive=archive))
    with serving({"imagenette2-160.tgz": content}) as server:
        assert len(data.fetch("imagenette", home, server.address)) == 20
    assert names(home / "imagenette") == ["train", "val"]
    assert names(home / "imagenette" / "train" / "n01440764") == ["0.JPEG", "1.JPEG"]
