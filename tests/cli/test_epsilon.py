"""`dpjax epsilon` prints the library's numbers, and says what they are worth."""

import json
import math

import pytest

import dpjax
from dpjax import accounting
from dpjax.accounting.bound import rounded_up
from dpjax.cli import printing
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from tests.cli.calls import RUN, SMALL, data, printed, refused

METHOD, POISSON = dpjax.methods.dp_sgd(1.1), Poisson(10, 1000)
EPSILON = ("epsilon", *SMALL)


def test_json_is_the_librarys_bound(capsys):
    found = data(capsys, [*EPSILON, "--accountant", "pld", "--delta", "1e-5"])
    assert [row["accountant"] for row in found["results"]] == ["rdp", "pld"]
    for row in found["results"]:
        bound = accounting.epsilon(METHOD, POISSON, 50, 1e-5, row["accountant"])
        assert row == {"epsilon": bound.upper, **vars(bound)}
    assert dpjax.Mechanism.from_plain(found["method"]) == METHOD
    assert Sampling.from_plain(found["sampling"]) == POISSON
    assert (found["steps"], found["delta"], found["delta_is_default"]) == (50, 1e-5, False)


def test_table_rounds_up_and_says_that_delta_is_the_default(capsys):
    bound = accounting.epsilon(METHOD, POISSON, 50, 1 / 1000, "rdp")
    text = printed(capsys, EPSILON)
    assert f"rdp         {rounded_up(bound)} " in text
    assert float(rounded_up(bound)) >= bound
    assert "delta     0.001 (1/N, the default)" in text
    assert "default" not in printed(capsys, [*EPSILON, "--delta", "1e-3"])


def test_notes_stand_under_the_table(capsys):
    text = printed(capsys, [*EPSILON, "--accountant", "gdp", "--accountant", "tcdp"])
    table, notes = text.split("\n\n", 2)[1:]
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["rdp", "gdp", "tcdp"]
    assert "no [1]" in table
    assert "[1] the central-limit figure" in notes
    assert "[2] accountant = 'tcdp' at noise_multiplier = 1.1" in notes


def test_all_is_what_knows_the_sampler(capsys):
    arguments = [*EPSILON, "--accountant", "all"]
    names = [row["accountant"] for row in data(capsys, arguments)["results"]]
    assert names == ["rdp", "pld", "tcdp", "gdp"]
    arguments = ["epsilon", *RUN, "--sampling", "fixed", "--accountant", "all"]
    rows = data(capsys, arguments)["results"]
    assert [row["accountant"] for row in rows] == ["rdp", "tcdp"]
    assert rows[1] == {"accountant": "tcdp", "epsilon": None, "note": rows[1]["note"]}


def test_the_only_accountant_must_know_the_sampler(capsys):
    fixed = ["epsilon", *RUN, "--sampling", "fixed", "--accountant", "pld"]
    assert "accountant = 'pld' with FixedSize" in refused(capsys, fixed)
    assert "no bound is known" in refused(capsys, [*EPSILON, "--relation", "replace_one"])


@pytest.mark.parametrize(
    ("flags", "sampling"),
    [
        ((), POISSON),
        (("--sampling", "truncated", "--max-size", "30"), TruncatedPoisson(10, 1000, 30)),
        (("--sampling", "fixed"), FixedSize(10, 1000)),
    ],
)
def test_samplings(capsys, flags, sampling):
    found = data(capsys, ["epsilon", *RUN, *flags])
    assert Sampling.from_plain(found["sampling"]) == sampling
    bound = accounting.epsilon(
        METHOD, sampling, 50, 1 / 1000, "rdp" if isinstance(sampling, FixedSize) else "pld"
    )
    assert found["results"][0]["epsilon"] == bound
    assert found["relation"] == bound.relation


def test_epochs_start_and_full_batches(capsys):
    found = data(capsys, [*EPSILON[:9], *EPSILON[11:], "--epochs", "0.33"])
    assert found["steps"] == 33
    curve = ["--method", "du", "--noise-multiplier", "2", "--set", "rho_mu=3", "--set", "steps=90"]
    arguments = ["epsilon", *curve, "--sampling", "full", "--delta", "1e-5"]
    found = data(capsys, [*arguments, "--epochs", "5", "--start", "40", "--accountant", "rdp"])
    method = dpjax.methods.du(2.0, steps=90, rho_mu=3)
    bound = accounting.epsilon(method, FullBatch(), 5, 1e-5, "rdp", start=40)
    assert found["results"][0]["epsilon"] == bound


def test_runs_print_each_and_all_published(capsys):
    ledger = accounting.Ledger("data").add_steps(METHOD, POISSON, 50)
    cost = accounting.published_together([ledger] * 3, 1 / 1000, "rdp")
    row = data(capsys, [*EPSILON, "--runs", "3"])["results"][0]
    assert row["epsilon"] == cost.each[0]
    assert row["all_published"]["epsilon"] == cost.all_published
    text = printed(capsys, [*EPSILON, "--runs", "3"])
    assert "each " in text
    assert "all 3 published" in text


def test_adaptive_methods_say_how_sigma_is_split(capsys):
    argv = [*EPSILON[:2], "andrew", *EPSILON[3:]]
    found = data(capsys, [*argv, "--batch-size", "100"])
    mechanism = dpjax.methods.andrew(1.1)
    assert found["sigma_statistic"] == mechanism.sigma_statistic(100)
    assert found["sigma_gradient"] == [float(mechanism.sigma_gradient(0, 100))] * 2
    assert "sigma_S = 1" in refused(capsys, argv)  # B / 20 would be too little noise


@pytest.mark.parametrize("failure", [ValueError, OverflowError, MemoryError])
def test_an_accountant_that_fails_leaves_the_others_alone(capsys, monkeypatch, failure):
    def fails(*args):
        raise failure("too much\nof it")

    monkeypatch.setattr("dpjax.accounting.gdp.gdp_mu", fails)
    rdp, gdp = data(capsys, [*EPSILON, "--accountant", "gdp"])["results"]
    assert rdp["epsilon"] > 0
    assert gdp["epsilon"] is None
    assert refused(capsys, ["epsilon", *RUN, "--accountant", "gdp"]) == "too much of it"


def test_so_little_noise_that_there_is_no_epsilon(capsys):
    argv = [*EPSILON, "--noise-multiplier", "0.01", "--accountant", "gdp"]
    assert "expected more noise" in refused(capsys, argv)


def test_infinity_is_written_as_text(capsys):
    printing.show(True, "", {"epsilon": math.inf})
    assert json.loads(capsys.readouterr().out)["epsilon"] == "inf"


def test_no_guarantee_is_refused_with_the_reason(capsys):
    argv = [*EPSILON[:2], "auto_dp_sgd", *EPSILON[3:], "--accountant", "all"]
    assert "auto_dp_sgd_sound" in refused(capsys, argv)
