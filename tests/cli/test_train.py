"""`dpjax train` as a person calls it: what it prints, writes and refuses."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dpjax.cli import main, printing
from dpjax.train import RunFolder, loop
from tests.cli.calls import printed, refused

TINY = (
    *("train", "--quiet", "--set", "train.steps=3", "--set", "model.name=linear"),
    *("--set", "privacy.accountant=rdp"),
)
NOISY = (*TINY, "--set", "privacy.epsilon=none", "--set", "method.noise_multiplier=1.0")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    # Pictures take their time; that of a process of its own is looked at.
    monkeypatch.setattr("dpjax.cli.run_plots.draw_runs", lambda runs, output: None)
    return tmp_path


@pytest.fixture
def no_training(monkeypatch):
    """Fails the test if a refused command takes a step."""
    monkeypatch.setattr(loop.Loop, "_advance", lambda *_: pytest.fail("it trained"))


def stop_at(monkeypatch, step, error):
    """Makes the driver stop before the step after `step`."""

    def advance(self, boundary, original=loop.Loop._advance):
        if self._step >= step:
            raise error
        original(self, boundary)

    monkeypatch.setattr(loop.Loop, "_advance", advance)


class TestHelp:
    @pytest.mark.parametrize("command", [[], ["train"], ["compare"], ["export"]])
    def test_help_fits_a_terminal(self, capsys, monkeypatch, command):
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as done:
            main([*command, "--help"])
        out, err = capsys.readouterr()
        assert (done.value.code, err) == (0, "")
        assert out.startswith(" ".join(["usage: dpjax", *command]))
        assert max(map(len, out.splitlines())) <= 80
        for flag in ("--out", "--resume", "--seed", "--json") if "train" in command else ():
            assert flag in out

    def test_every_command_stands_on_a_line_with_its_summary(self, capsys):
        with pytest.raises(SystemExit):
            main(["--help"])
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        for name in ("train", "compare", "export", "data", "epsilon", "calibrate", "tune-cost"):
            (own,) = [words for words in lines if words[:1] == [name]]
            assert len(own) > 2, name


# What is wrong, and what the sentence must hold: the place, and the name that was meant.
REFUSALS = {
    "flag": (["--nonsense"], ["--nonsense"]),
    "abbreviated flag": (["--see", "1"], ["--see"]),
    "no number": (["--seed", "x"], ["--seed", "'x'"]),
    "method": (["--method", "dpsgd"], ["method.name = 'dpsgd'", "did you mean 'dp_sgd'"]),
    "argument": (["--set", "method.treshold=1"], ["method.treshold", "'threshold'"]),
    "its value": (["--set", "method.threshold=-1"], ["threshold = -1", "> 0"]),
    "data": (["--set", "data.name=mnits"], ["'mnits'", "did you mean 'mnist'"]),
    "model": (["--set", "model.name=mpl"], ["'mpl'", "did you mean 'mlp'"]),
    "option": (["--set", "model.name=mlp", "--set", "model.hiden=8"], ["'hiden'", "'hidden'"]),
    "optimizer": (["--set", "optimizer.name=adm"], ["optimizer.name = 'adm'", "'adam'"]),
    "table": (["--set", "trian.chunk=3"], ["trian", "did you mean 'train'"]),
    "key": (["--set", "train.batchsize=3"], ["train.batchsize", "'batch_size'"]),
    "no path": (["--set", "train=3"], ["train", "expected a path such as"]),
    "no value": (["--set", "train.chunk"], ["--set train.chunk", "expected KEY=VALUE"]),
    "no literal": (
        ["--set", "train.chunk=1 2"],
        ["--set train.chunk=1 2", "TOML literal", "'train.chunk=\"...\"'"],
    ),
    "engine": (["--set", "train.engine=vamp"], ["'vamp'", "did you mean 'vmap'"]),
    "augmentation": (["--set", 'train.augment=["flop"]'], ["'flop'", "did you mean 'flip'"]),
    "batch": (["--set", "train.batch_size=9999"], ["train.batch_size = 9999", "1437"]),
    "no batch": (["--set", "train.batch_size=0"], ["train.batch_size = 0", ">= 1"]),
    "rate": (["--set", "train.batch_size=0.1"], ["train.batch_size = 0.1", "sampling rate"]),
    "budget": (["--epsilon", "nan"], ["privacy.epsilon = nan"]),
    "devices": (["--set", "run.mesh.data=99"], ["run.mesh = {'data': 99}", "expected at most"]),
    "config": (["--config", "missing.toml"], ["missing.toml: No such file"]),
    "data files": (
        ["--set", "data.name=mnist", "--data-dir", "empty"],
        ["empty/mnist", "dpjax data fetch mnist --data-dir empty"],
    ),
    "weights": (["--set", 'model.weights="w.npz"'], ["w.npz: No such file"]),
    "resume": (["--resume"], ["--resume: expected --out"]),
    "rekey": (["--rekey"], ["expected --out"]),
    "vary": (["--vary", "method.threshold=1"], ["--vary method.threshold=1", "expected PATH=["]),
    "vary what": (["--vary", "train.steps=[1, 2]"], ["train.steps", "method.threshold"]),
}


class TestRefusals:
    @pytest.mark.parametrize("what", REFUSALS)
    def test_one_sentence_and_no_folder(self, capsys, place, no_training, what):
        argv, expected = REFUSALS[what]
        sentence = refused(capsys, [*TINY, *argv])
        for part in expected:
            assert part in sentence
        assert list(place.iterdir()) == []

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"[train\n", "expected TOML"),
            (b"\xff\xfe", "expected TOML"),
            (b"[train]\nstep = 3\n", "did you mean 'steps'"),
            (b"[trian]\nsteps = 3\n", "did you mean 'train'"),
            (b"train = 3\n", "expected a table"),
        ],
    )
    def test_config_files(self, capsys, place, no_training, content, expected):
        (place / "own.toml").write_bytes(content)
        sentence = refused(capsys, ["train", "--config", "own.toml"])
        assert sentence.startswith("own.toml: ")
        assert expected in sentence

    def test_out_that_is_a_file(self, capsys, place, no_training):
        (place / "file").write_text("mine")
        assert "file is a file" in refused(capsys, [*NOISY, "--out", "file"])
        assert "file/run" in refused(capsys, [*NOISY, "--out", "file/run"])
        assert (place / "file").read_text() == "mine"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_out_in_a_closed_folder(self, capsys, place, no_training):
        (place / "closed").mkdir(mode=0o500)
        assert "Permission denied" in refused(capsys, [*NOISY, "--out", "closed/run"])

    def test_out_that_holds_what_was_exported(self, capsys, place, no_training):
        (place / "model").mkdir()
        (place / "model" / "ledger.json").write_text("{}")
        assert "ledger.json" in refused(capsys, [*NOISY, "--out", "model"])
        assert (place / "model" / "ledger.json").read_text() == "{}"


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """A run with a fixed seed: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("seeded") / "run"
    argv = [sys.executable, "-W", "error", "-m", "dpjax", *NOISY, "--seed", "5"]
    done = subprocess.run([*argv, "--out", str(folder)], capture_output=True, text=True, check=True)
    return folder, done


class TestOneRun:
    def test_what_is_printed(self, seeded):
        folder, done = seeded
        row = RunFolder(folder).released()[-1]
        assert f"{row['accuracy']:.2%}" in done.stdout
        assert str(folder) in done.stdout
        assert f"picture  {folder}/plots/run.png" in done.stdout
        assert (folder / "plots" / "run.png").read_bytes()[:4] == b"\x89PNG"
        shown = float(done.stdout.split("epsilon <= ")[1])
        spent = RunFolder(folder).read_ledger().epsilon(1 / 1437, "rdp")
        assert spent <= shown <= 1.001 * spent

    def test_a_fixed_seed_is_warned_of_in_one_line(self, seeded):
        assert seeded[1].stderr.startswith("dpjax: seed 5: ")
        assert "do not publish" in seeded[1].stderr
        assert seeded[1].stderr.count("\n") == 1

    def test_a_folder_that_holds_a_run_is_refused(self, capsys, seeded, no_training):
        sentence = refused(capsys, [*NOISY, "--out", str(seeded[0])])
        assert (
            sentence == f"{seeded[0]} holds a run: expected --resume to resume it, or another --out"
        )
        more = refused(capsys, [*NOISY, "--seeds", "2", "--out", str(seeded[0])])
        assert "holds one run" in more

    def test_json(self, capsys, place):
        found = json.loads(printed(capsys, [*TINY, "--epsilon", "3", "--json"]))
        assert found["folder"] == "runs/digits-dp_sgd"
        (run,) = found["runs"]
        assert 0 < run["epsilon"] <= 3
        assert run["delta"] == 1 / 1437
        assert (run["steps"], run["threshold"], run["stopped_early"]) == (3, 1.0, False)
        assert run["accuracy"] == RunFolder(place / found["folder"]).released()[-1]["accuracy"]

    def test_without_a_seed_keys_are_the_operating_systems(self, capsys, place):
        found = [json.loads(printed(capsys, [*NOISY, "--json"])) for _ in range(2)]
        folders = [place / one["folder"] for one in found]
        assert [folder.name for folder in folders] == ["digits-dp_sgd", "digits-dp_sgd-2"]
        one, other = (models(capsys, folder) for folder in folders)
        for name, values in one.items():
            assert not np.array_equal(values, other[name])

    def test_a_budget_that_ends_early_is_said(self, capsys):
        argv = [*NOISY, "--epsilon", "1.5", "--set", "train.steps=50"]
        text = printed(capsys, [*argv, "--set", "train.batch_size=64"])
        assert "stopped by the budget" in text
        assert float(text.split("epsilon <= ")[1]) <= 1.5


def models(capsys, run):
    printed(capsys, ["export", str(run), "--output", str(run.with_name(f"{run.name}-model"))])
    with np.load(run.with_name(f"{run.name}-model") / "model.npz") as file:
        return {name: file[name] for name in file.files}


class TestMembers:
    def test_seeds_go_in_one_program_and_cost_each_and_all(self, capsys, place, monkeypatch):
        compiled = []
        original = loop.Loop.to_the_end
        monkeypatch.setattr(
            loop.Loop,
            "to_the_end",
            lambda own: compiled.append(len(own._runs)) or original(own),
        )
        text = printed(capsys, [*NOISY, "--seeds", "2", "--out", "two"])
        assert compiled == [2]
        each, together = (float(part.split()[0].rstrip(",")) for part in text.split("<= ")[1:])
        assert "epsilon each <=" in text
        assert "all published <=" in text
        assert each < together < 2 * each
        rows = [RunFolder(place / "two" / f"seed-{i}").steps() for i in range(2)]
        assert rows[0]["step"] == rows[1]["step"] == [0, 1, 2]
        # The runs are known by their folder: nothing has to be said again to go on with them.
        again = printed(capsys, ["train", "--quiet", "--resume", "--out", "two"])
        assert again.replace("\n", "") == text.replace("\n", "")

    @pytest.mark.slow
    def test_vary(self, capsys, place):
        argv = [*NOISY, "--vary", "optimizer.learning_rate=[0.001, 0.1]", "--out", "rates"]
        found = json.loads(printed(capsys, [*argv, "--json"]))
        names = [run["folder"] for run in found["runs"]]
        assert names == ["rates/learning_rate-0.001-seed-0", "rates/learning_rate-0.1-seed-0"]
        rates = [RunFolder(place / n).read_config().optimizer.learning_rate for n in names]
        assert rates == [0.001, 0.1]
        sentence = refused(capsys, ["train", "--resume", "--out", "rates"])
        assert sentence == "rates holds runs that differ: expected --vary as it was"
        again = json.loads(printed(capsys, [*argv, "--resume", "--json"]))
        assert [r["accuracy"] for r in again["runs"]] == [r["accuracy"] for r in found["runs"]]
        assert models(capsys, place / names[1])["dense/kernel"].shape == (64, 10)


class TestGoingOn:
    def test_ctrl_c_says_how_to_go_on(self, capsys, place, monkeypatch):
        argv = [*NOISY, "--set", "run.checkpoint_every=1", "--out", "my run"]
        with monkeypatch.context() as patch:
            stop_at(patch, 2, KeyboardInterrupt)
            assert main(argv) == 130
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err == (
            "dpjax: stopped; the same command with --resume --out 'my run' resumes from the last "
            "checkpoint\n"
        )
        assert len(RunFolder(place / "my run").steps()["step"]) == 2
        printed(capsys, [*argv, "--resume"])
        assert RunFolder(place / "my run").steps()["step"] == [0, 1, 2]

    @pytest.mark.parametrize("every", [1, 3])
    def test_sigterm_saves_and_says_how_to_resume(self, capsys, place, monkeypatch, every):
        """Where the run is, it is saved, behind an evaluation that is due there."""
        argv = [*NOISY, "--set", f"run.evaluate_every={every}", "--out", "run"]
        original = loop.Loop._advance

        def told(self, boundary):
            original(self, boundary)
            os.kill(os.getpid(), signal.SIGTERM)

        before = signal.getsignal(signal.SIGTERM)
        with monkeypatch.context() as patch:
            patch.setattr(loop.Loop, "_advance", told)
            assert main(argv) == 143
        assert signal.getsignal(signal.SIGTERM) is before
        assert capsys.readouterr().err == (
            "dpjax: told to end (SIGTERM): saved at step 1 of 3; the same command with --resume "
            "--out run resumes from the last checkpoint\n"
        )
        assert len(list(place.glob("run/checkpoints/*/step_00000001"))) == 1
        printed(capsys, [*argv, "--resume"])
        assert RunFolder(place / "run").steps()["step"] == [0, 1, 2]
        evaluated = [row["step"] for row in RunFolder(place / "run").released()]
        assert evaluated == list(range(every, 4, every))

    def test_a_bar_is_put_away(self, monkeypatch, capsys):
        ended = []
        monkeypatch.setattr("dpjax.train.progress.Lines.end", lambda self: ended.append(1))
        stop_at(monkeypatch, 0, KeyboardInterrupt)
        assert main([word for word in NOISY if word != "--quiet"]) == 130
        assert len(ended) == 1

    def test_a_changed_experiment_is_refused_or_entered(self, capsys, place):
        argv = [*NOISY, "--out", "run"]
        printed(capsys, argv)
        longer = ["train", "--quiet", "--out", "run", "--set", "train.steps=5"]
        sentence = refused(capsys, [*longer, "--resume"])
        assert "train.steps was 3 and is 5" in sentence
        assert "--rekey" in sentence
        assert "run.seed = 7: expected None" in refused(
            capsys, ["train", "--resume", "--out", "run", "--seed", "7"]
        )
        assert "--method NAME with all" in refused(
            capsys, [*longer, "--rekey", "--set", "method.gamma=0.5"]
        )
        printed(capsys, [*longer, "--rekey"])
        run = RunFolder(place / "run")
        assert run.steps()["step"] == [0, 1, 2, 3, 4]
        assert [(entry.start, entry.steps) for entry in run.read_ledger().entries] == [
            (0, 3),
            (3, 2),
        ]
        assert run.read_config().train.steps == 5

    def test_a_method_by_the_same_flags_goes_on(self, capsys, place):
        argv = [*NOISY, "--method", "auto_s", "--set", "method.gamma=0.1", "--out", "run"]
        text = printed(capsys, argv)
        assert RunFolder(place / "run").read_config().method["name"] == "auto_s"
        assert RunFolder(place / "run").read_config().method["rule"]["gamma"] == 0.1
        assert printed(capsys, [*argv, "--resume"]) == text
        assert printed(capsys, ["train", "--quiet", "--resume", "--out", "run"]) == text
        plain = [word for word in argv if word not in ("--method", "auto_s")]
        assert printed(capsys, [*plain, "--resume"]) == text
        other = [word.replace("0.1", "0.2") for word in argv]
        assert "'gamma': 0.1" in refused(capsys, [*other, "--resume"])

    @pytest.mark.parametrize("flag", ["--resume", "--rekey"])
    def test_nothing_to_go_on_with_is_refused_by_the_folder(self, capsys, place, no_training, flag):
        (place / "made").mkdir()
        for folder in ("new", "made"):
            for more in ([], ["--seeds", "2"]):
                sentence = refused(capsys, [*NOISY, flag, "--out", folder, *more])
                assert sentence.startswith(f"{folder} holds no run: expected ")
        assert [path.name for path in place.iterdir()] == ["made"]
        assert list((place / "made").iterdir()) == []

    def test_stopped_before_it_began_there_is_nothing_to_go_on_with(self, capsys, monkeypatch):
        def stopped(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr("dpjax.cli.train.train", stopped)
        assert main([*NOISY, "--out", "new"]) == 130
        assert capsys.readouterr().err == "dpjax: stopped\n"

    def test_a_number_that_is_none_is_null_in_json(self, capsys):
        printing.show(True, "", {"accuracy": float("nan"), "rows": [{"epsilon": float("inf")}]})
        assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
            "accuracy": None,
            "rows": [{"epsilon": "inf"}],
        }


LIMITED = """
import resource, sys
from dpjax.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


class TestProcess:
    def test_a_full_disk_is_one_sentence(self, place):
        """A limit on the size of files stands for it: the parameters do not fit."""
        argv = [*NOISY, "--set", "model.name=mlp", "--set", "model.hidden=2000", "--out", "run"]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", LIMITED, "100000", *argv],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("dpjax: error: checkpoint of step 0 was not written to ")
        assert "File too large" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_sigint(self, place):
        argv = [*NOISY, "--set", "train.steps=100000", "--set", "run.checkpoint_every=5"]
        # A shell's job in the background ignores the signal, and so would its children.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with subprocess.Popen(
            [sys.executable, "-m", "dpjax", *argv, "--out", "run"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                while not (place / "run" / "steps.csv").exists() and process.poll() is None:
                    time.sleep(0.01)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=120)
            finally:
                process.kill()
                signal.signal(signal.SIGINT, before)
        assert (process.returncode, out) == (130, "")
        assert err.startswith("dpjax: stopped; the same command with --resume --out run ")
        assert err.count("\n") == 1


def test_diagnostics_have_a_picture_of_their_own_that_says_what_it_is(tmp_path, capsys):
    status, out, _ = printed_in(capsys, [*NOISY, "--diagnostics", "--out", "run"])
    assert status == 0
    picture = tmp_path / "run" / "plots" / "diagnostics.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "diagnostics.png (not private)" in out


def printed_in(capsys, command):
    status = main(command)
    return status, *capsys.readouterr()
