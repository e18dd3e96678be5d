"""`dpjax plot privacy` writes a figure of the library's numbers."""

import sys

import pytest

import dpjax
from dpjax import accounting
from dpjax.sampling import Poisson
from tests.cli.calls import RUN, SMALL, data, printed, refused


@pytest.fixture
def output(tmp_path):
    pytest.importorskip("matplotlib")
    return str(tmp_path / "privacy.png")


def test_curves_are_the_librarys(capsys, output):
    argv = ["plot", "privacy", *SMALL, "--accountant", "gdp", "--output", output]
    found = data(capsys, argv)
    method = dpjax.methods.dp_sgd(1.1)
    for entry, name in zip(found["epsilons"], ("rdp", "gdp"), strict=True):
        curve = entry["curve"]
        assert (curve["steps"][0], curve["steps"][-1]) == (1, 50)
        for steps, value in zip(curve["steps"], curve["values"], strict=True):
            assert value == accounting.epsilon(
                method, Poisson.with_rate(0.01), steps, 1 / 1000, name
            )
    assert [entry["guarantee"] for entry in found["epsilons"]] == [True, False]
    assert found["noise"][0]["values"] == pytest.approx([1.1] * 50)
    assert found["thresholds"][0]["known"] is True


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_figures_are_written(capsys, output, suffix):
    output = output.replace(".png", suffix)
    argv = ["plot", "privacy", *SMALL, "--accountant", "tcdp", "--output", output]
    text = printed(capsys, argv)
    assert text.splitlines()[0] == output
    assert "not drawn: accountant = 'tcdp'" in text
    with open(output, "rb") as file:
        assert file.read(4) in (b"\x89PNG", b"<?xm", b"%PDF")


def test_adaptive_thresholds_start_somewhere(capsys, output):
    argv = ["plot", "privacy", *SMALL, "--method", "dc_sgd_e", "--set", "c0=0.3"]
    found = data(capsys, [*argv, "--output", output])
    (threshold,) = found["thresholds"]
    assert (threshold["name"], threshold["known"]) == ("adapts, from C_0 = 0.3", False)
    accounted, own = found["noise"]
    assert own["values"][0] > accounted["values"][0]


def test_schedules_and_groups_have_curves(capsys, output):
    groups = ["--set", 'groups={a="x", b="y"}']
    tables = ["--set", 'threshold=[1.0, {kind="table", values=[3.0, 2.0], steps_per_epoch=25}]']
    argv = ["plot", "privacy", *SMALL, *groups, *tables, "--output", output]
    first, second = data(capsys, argv)["thresholds"]
    assert set(first["values"]) == {1.0}
    assert second["values"] == [3.0] * 25 + [2.0] * 25


def test_noise_that_reaches_no_epsilon_is_refused(capsys, output):
    argv = ["plot", "privacy", *SMALL, "--noise-multiplier", "0.01", "--accountant", "gdp"]
    assert "the noise ends at 11.6 standard deviations" in refused(
        capsys, [*argv, "--output", output]
    )


def test_without_a_number_nothing_is_drawn(capsys, output, tmp_path):
    argv = ["plot", "privacy", *RUN, "--accountant", "tcdp", "--output", output]
    assert "the subsampling lemma" in refused(capsys, argv)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_and_a_missing_flag_are_refused(capsys, output):
    argv = ["plot", "privacy", *SMALL, "--output"]
    assert "'xyz'" in refused(capsys, [*argv, output.replace("png", "xyz")])
    assert "required: --output" in refused(capsys, argv[:-1])


def test_missing_matplotlib_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    argv = ["plot", "privacy", *SMALL, "--output", str(tmp_path / "x.png")]
    assert "pip install dpjax[plots]" in refused(capsys, argv)
