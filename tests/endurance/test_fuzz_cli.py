"""Any command line: an answer, or exit code 2 and one printable line; never a traceback.

`dpjax.cli.main` is called in this process, so that an exception would be seen as it is.
"""

import contextlib
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpjax.cli import compare as compare_command
from dpjax.cli import main
from dpjax.cli import train as train_command
from tests.endurance.counting import count, examples
from tests.endurance.junk import any_float, any_integer, any_text, keys, plain_scalars

REACHED = "the command line was understood"


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch, tmp_path):
    """Commands begin in an empty folder, without data, and training ends where it would start."""

    def refuse(*args, **kwargs):
        raise ValueError(REACHED)

    monkeypatch.setattr(train_command, "trained", refuse)
    monkeypatch.setattr(compare_command, "trained", refuse)
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def called(argv):
    """Runs a command; returns (code, what it says on stderr), after checking the form of both."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except SystemExit as left:  # --help
            code = left.code
    said = err.getvalue()
    assert code in (0, 2), (argv, code)
    if code == 2:
        assert said.startswith("dpjax: error: "), argv
        assert said.endswith("\n"), argv
        assert said[:-1].isprintable(), argv
        assert out.getvalue() == "", argv
    assert "Traceback" not in said
    return code, said


words = st.one_of(any_text, keys, any_float.map(repr), any_integer.map(str), st.text(max_size=12))
commands = st.sampled_from(
    ["train", "compare", "export", "data", "epsilon", "calibrate", "tune-cost", "plot", "--help"]
)
flags = st.sampled_from(
    [
        *("--method", "--set", "--config", "--steps", "--epochs", "--batch-size", "--delta"),
        *("--dataset-size", "--sampling", "--json", "--seed", "--out", "--resume", "--vary"),
        *("--epsilon", "--output", "--help", "--relation", "--start", "--runs", "--data-dir"),
    ]
)


@examples(120)
@given(command=commands, rest=st.lists(flags | words, max_size=5))
@example(command="\udcff", rest=[])
@example(command="epsilon", rest=["--config", "\x1b[2J"])
@example(command="epsilon", rest=["--set", "\n=\n"])
@example(command="export", rest=["a\0b", "--output", "x"])
def test_any_arguments(command, rest):
    count("input", "dpjax, any arguments")
    called([command, *rest])


EPSILON = {
    "--method": "dp_sgd",
    "--noise-multiplier": "1.1",
    "--dataset-size": "1000",
    "--batch-size": "10",
    "--steps": "50",
    "--delta": "1e-5",
    "--accountant": "rdp",
}


@examples(80)
@given(
    data=st.data(),
    command=st.sampled_from(["epsilon", "epsilon", "calibrate", "tune-cost"]),
    added=st.lists(st.tuples(flags, words), max_size=1),
)
def test_accounting_commands_with_values_replaced(data, command, added):
    count("input", f"dpjax {command}")
    given = dict(EPSILON)
    for flag in data.draw(st.lists(st.sampled_from(sorted(given)), max_size=2, unique=True)):
        value = data.draw(words | st.integers(1, 10**6).map(str) | st.floats(0, 1).map(repr))
        if data.draw(st.booleans()):
            given[flag] = value
        else:
            del given[flag]
    if given.get("--accountant") in ("pld", "all"):
        given["--accountant"] = "rdp"  # as much is learnt in a hundredth of the time
    called([command, *(word for pair in given.items() for word in pair), *sum(added, ())])


PATHS = [
    *("train.batch_size", "train.steps", "train.epochs", "train.sampling", "train.engine"),
    *("data.name", "model.name", "model.hidden", "optimizer.name", "optimizer.learning_rate"),
    *("method.name", "method.threshold", "method.noise_multiplier", "privacy.delta", "run.seed"),
    *("privacy.epsilon", "run.mesh.data", "train.augment", "method.kind", "nothing.here"),
]


@examples(120)
@given(
    sets=st.lists(
        st.tuples(st.sampled_from(PATHS) | keys, words | plain_scalars.map(repr)), max_size=3
    ),
    more=st.lists(st.sampled_from(["--json", "--quiet", "--diagnostics"]), max_size=1),
)
def test_train_with_any_set(sets, more):
    count("input", "dpjax train --set")
    pairs = [word for path, value in sets for word in ("--set", f"{path}={value}")]
    code, said = called(["train", *pairs, *more])
    assert code == 2
    assert said.strip() != "dpjax: error:"


@examples(60)
@given(
    text=st.text(max_size=60) | st.binary(max_size=40),
    command=st.sampled_from(
        [["epsilon", "--config"], ["train", "--config"], ["calibrate", "--config"]]
    ),
)
def test_config_files_of_any_bytes(tmp_path_factory, text, command):
    count("input", "dpjax --config FILE")
    file = tmp_path_factory.mktemp("any") / "file.toml"
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    file.write_bytes(raw)
    code, said = called([*command, str(file)])
    assert code == 2
    if not raw.strip().startswith(b"#") and raw.strip():
        assert "file.toml" in said or REACHED in said or "missing" in said


def test_the_check_can_fail(monkeypatch):
    """A command that lets a KeyError out would be seen."""

    def broken(*args, **kwargs):
        raise KeyError("step")

    monkeypatch.setattr(train_command, "trained", broken)
    with pytest.raises(KeyError):
        called(["train"])
