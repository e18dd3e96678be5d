"""`dpjax data list`, `check` and `fetch`."""

import json

import numpy as np
import pytest

from dpjax.cli import main
from dpjax.data import DATASETS
from tests.cli.calls import data, printed, refused
from tests.data.official import images, make_official, write_mnist
from tests.data.server import serving

FIRST = "train-images-idx3-ubyte.gz"
SPLITS = (
    (images(0, 3, 28, 28), np.array([1, 2, 3])),
    (images(1, 2, 28, 28), np.array([4, 5])),
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("DPJAX_DATA", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def origin(monkeypatch, tmp_path):
    """Makes a tiny MNIST the official one, and returns where it lies."""
    write_mnist(tmp_path / "origin" / "mnist", SPLITS)
    for name in ("mnist", "mnist_scattering"):  # both read these files
        make_official(monkeypatch, name, tmp_path / "origin" / "mnist", 3, 2)
    return tmp_path / "origin"


def checked(capsys, *argv):
    """Returns the exit code of a check, and its files."""
    code = main(["data", "check", *argv, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["good"] is (code == 0)
    return code, found["files"]


def test_list_shows_every_data_set_and_which_are_there(capsys, origin):
    (origin / "svhn").mkdir()
    (origin / "svhn" / "test_32x32.mat").write_bytes(b"x")
    lines = printed(capsys, ["data", "list", "--data-dir", str(origin)]).splitlines()
    assert lines[0].split() == ["name", "data", "set", "train", "test", "read", "from", "present"]
    assert [line.split()[0] for line in lines[1:]] == list(DATASETS)
    rows = {line.split()[0]: line for line in lines[1:]}
    assert rows["digits"].split()[-5:] == ["(embedded)", "1,437", "360", "-", "yes"]
    assert rows["mnist"].split() == ["mnist", "MNIST", "3", "2", f"{origin}/mnist", "yes"]
    assert rows["svhn"].endswith("in part")
    assert rows["qnli"].endswith("no")
    assert "73,257" in rows["svhn"]


def test_list_takes_the_environment_variable(capsys, monkeypatch, origin):
    monkeypatch.setenv("DPJAX_DATA", str(origin))
    found = {row["name"]: row for row in data(capsys, ["data", "list"])["datasets"]}
    assert found["mnist"]["folder"] == str(origin / "mnist")
    assert found["mnist"]["present"] == "yes"
    assert found["ag_news_subset"]["train"] is None
    assert found["svhn"]["addresses"][0].startswith("http://ufldl.stanford.edu/")


def test_check_says_ok(capsys, origin):
    text = printed(capsys, ["data", "check", "mnist", "--data-dir", str(origin)])
    assert text.splitlines()[0].split() == ["data", "set", "file", "state"]
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["ok"] * 4


def test_check_finds_what_is_wrong(capsys, origin):
    argv = ["mnist", "--data-dir", str(origin)]
    (origin / "mnist" / FIRST).write_bytes(bytes((origin / "mnist" / FIRST).stat().st_size))
    code, files = checked(capsys, *argv)
    assert (code, files[0]["state"]) == (1, "wrong checksum")
    assert DATASETS["mnist"].files[0].checksum in files[0]["detail"]
    assert [file["state"] for file in files[1:]] == ["ok"] * 3
    (origin / "mnist" / FIRST).write_bytes(b"x")
    assert checked(capsys, *argv)[1][0]["state"] == "wrong size"
    (origin / "mnist" / FIRST).unlink()
    code, files = checked(capsys, *argv)
    assert (code, files[0]["state"]) == (1, "missing")


def test_check_of_everything_minds_damage_but_not_absence(capsys, origin):
    code, files = checked(capsys, "--data-dir", str(origin))
    assert (code, {file["state"] for file in files}) == (0, {"ok", "missing"})
    (origin / "mnist" / FIRST).write_bytes(b"x")
    assert checked(capsys, "--data-dir", str(origin))[0] == 1


def test_check_says_where_no_checksum_is_published(capsys, origin):
    (origin / "ag_news").mkdir()
    (origin / "ag_news" / "train_desc_partial.tsv").write_text("label\tdescription\n")
    files = checked(capsys, "ag_news_subset", "--data-dir", str(origin))[1]
    assert [file["state"] for file in files] == ["no published checksum", "missing"]


def test_digits_need_no_files(capsys):
    assert printed(capsys, ["data", "check", "digits"]) == "no files needed\n"
    assert printed(capsys, ["data", "fetch", "digits"]).endswith("nothing is missing\n")


def test_fetch_from_a_mirror(capsys, origin, tmp_path):
    files = {path.name: path.read_bytes() for path in (origin / "mnist").iterdir()}
    home = str(tmp_path / "home")
    with serving(files) as server:
        argv = ["data", "fetch", "mnist", "--from", server.address, "--data-dir", home]
        text = printed(capsys, argv)
        assert text.splitlines()[0] == f"{home}/mnist/{FIRST}: new, verified"
        assert printed(capsys, argv) == "MNIST: nothing is missing\n"
        (tmp_path / "home" / "mnist" / FIRST).unlink()
        assert data(capsys, argv) == {"name": "mnist", "new": [f"{home}/mnist/{FIRST}"]}
        assert checked(capsys, "mnist", "--data-dir", home)[0] == 0


def test_fetch_shows_its_progress_on_a_terminal(capsys, monkeypatch, origin, tmp_path):
    files = {path.name: path.read_bytes() for path in (origin / "mnist").iterdir()}
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with serving(files) as server:
        argv = ["data", "fetch", "mnist", "--from", server.address, "--data-dir", str(tmp_path)]
        assert main(argv) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"\r{FIRST}: 0.0 of 0.0 MB, 100%\n")
    assert err.count("100%\n") == 4


def test_refusals_are_one_line(capsys, origin, tmp_path):
    home = ["--data-dir", str(tmp_path / "home")]
    with serving({}) as server:
        argv = ["data", "fetch", "mnist", "--from", server.address, *home]
        assert "the server answers 404" in refused(capsys, argv)
    assert "did you mean 'mnist'" in refused(capsys, ["data", "fetch", "mnits", *home])
    assert "did you mean 'mnist'" in refused(capsys, ["data", "check", "mnits", *home])
    assert "no public address" in refused(capsys, ["data", "fetch", "celeba_male", *home])
    argv = ["data", "fetch", "mnist", "--from", "file:///srv", *home]
    assert "expected an address with http" in refused(capsys, argv)
    assert "timeout = 0.0" in refused(capsys, ["data", "fetch", "mnist", "--timeout", "0", *home])
    assert "COMMAND" in refused(capsys, ["data"])


def test_a_folder_that_cannot_be_written(capsys, origin, tmp_path):
    (tmp_path / "file").write_text("in the way")
    argv = ["data", "fetch", "mnist", "--data-dir", str(tmp_path / "file")]
    assert "file" in refused(capsys, argv)
