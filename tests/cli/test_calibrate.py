"""`dpjax calibrate` prints and writes the library's calibrated method."""

import functools
import re
import tomllib

import pytest

import dpjax
from dpjax import accounting
from dpjax.accounting.bound import rounded_up
from dpjax.sampling import Poisson
from tests.cli.calls import RUN, data, printed, refused

SIZES = RUN[4:]
CALIBRATE = ("calibrate", *SIZES, "--epsilon", "1.5", "--delta", "1e-5", "--accountant", "rdp")


@functools.cache
def expected(method):
    return accounting.calibrate(method, Poisson.with_rate(0.01), 50, 1.5, 1e-5, "rdp")


def test_sigma_is_the_librarys_and_needs_no_first_guess(capsys):
    found = data(capsys, [*CALIBRATE, "--method", "dp_sgd"])
    method = expected(dpjax.methods.dp_sgd(1.0))
    assert dpjax.Mechanism.from_plain(found["method"]) == method
    assert (found["target"], found["calibrated_by"]) == (1.5, "rdp")
    spent = accounting.epsilon(method, Poisson.with_rate(0.01), 50, 1e-5, "rdp")
    assert found["results"][0]["epsilon"] == spent
    assert 0.999 * 1.5 <= spent <= 1.5


def test_the_printed_sigma_is_rounded_up(capsys):
    lines = printed(capsys, [*CALIBRATE, "--method", "dp_sgd"]).splitlines()
    exact = expected(dpjax.methods.dp_sgd(1.0)).noise_multiplier
    assert lines[0].startswith("sigma ")
    assert exact <= float(lines[0].split()[1]) < exact * 1.00001


def test_the_first_accountant_calibrates_and_all_answer(capsys):
    argv = [*CALIBRATE, "--accountant", "pld", "--accountant", "tcdp", "--method", "dp_sgd"]
    rdp, pld, tcdp = data(capsys, argv)["results"]
    assert rdp["epsilon"] > pld["epsilon"] > pld["lower"] > 0
    assert tcdp["epsilon"] is None


def test_a_schedule_gets_its_first_value(capsys):
    curve = ["--set", "rate=0.5", "--set", "steps_per_epoch=10"]
    found = data(capsys, [*CALIBRATE, "--method", "zhang_adaptive", *curve])
    method = expected(dpjax.methods.zhang_adaptive(1.0, steps_per_epoch=10, rate=0.5))
    assert found["method"]["noise_multiplier"]["init"] == method.noise_multiplier.init
    assert found["noise_multiplier"] == [float(method.sigma(t)) for t in (0, 49)]


def test_the_printed_schedule_shows_its_shape(capsys):
    text = printed(capsys, [*CALIBRATE, "--method", "zhang_adaptive"])
    assert text.startswith("sigma ")
    assert re.search(r"geometric\(init=[\d.]+, steps_per_epoch=100\.0, rate=0\.99\)", text)


def test_adaptive_methods_show_the_split(capsys):
    text = printed(capsys, [*CALIBRATE, "--method", "dc_sgd_e"])
    mechanism = expected(dpjax.methods.dc_sgd_e(1.0))
    own = rounded_up(float(mechanism.sigma_gradient(0)), 6)
    assert f"(sigma_T {own}, sigma_S 5)" in text


@pytest.mark.parametrize("name", ["dc_sgd_e", "zhang_adaptive"])
def test_the_file_written_is_the_method_and_can_be_asked_about(capsys, tmp_path, name):
    path = str(tmp_path / "method.toml")
    found = data(capsys, [*CALIBRATE, "--method", name, "--output", path])
    with open(path, "rb") as file:
        assert tomllib.load(file) == found["method"]
    again = data(capsys, ["epsilon", "--config", path, *CALIBRATE[1:7], *CALIBRATE[9:]])
    assert again["results"] == found["results"]


def test_what_cannot_be_met_is_refused(capsys, tmp_path):
    argv = ["calibrate", *SIZES, "--method", "dp_sgd", "--accountant", "rdp"]
    assert "epsilon: missing; expected --epsilon" in refused(capsys, argv)
    assert "epsilon = nan: expected" in refused(capsys, [*argv, "--epsilon", "nan"])
    small = [*argv, "--epsilon", "1e-4", "--delta", "1e-9", "--output", str(tmp_path / "none.toml")]
    assert "no noise multiplier gives an epsilon" in refused(capsys, small)
    assert not list(tmp_path.iterdir())
