"""Runs on disk: what is written, going on after a stop, changes on the way, what is exported."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from dpjax.accounting import Ledger, Steps
from dpjax.data import fingerprints
from dpjax.models.parameters import flat
from dpjax.train import Run, RunFolder, build_program, export, loop, root_key, train
from dpjax.train.folder import NOT_PRIVATE
from tests.train import small
from tests.train.small import Killed, N, experiment, images
from tests.train.test_program import same_bytes

DATA = images()
MARKS = fingerprints(DATA)
RUN = {"run__seed": 5, "run__evaluate_every": 2, "run__checkpoint_every": 3, "train__steps": 8}
FILES = ("config.toml", "released.jsonl", "steps.csv", "ledger.json", "statement.md")


@pytest.fixture
def stop_after(monkeypatch):
    """Makes the driver die after so many steps; what it returns is undone to go on."""

    def arm(steps):
        small.stop_after(monkeypatch, steps)
        return monkeypatch

    return arm


def run(folder, data=DATA, *, resume=False, rekey=False, say=lambda text: None, **changes):
    asked = experiment(**{**RUN, **changes})
    return train(asked, data, folder, resume=resume, rekey=rekey, say=say)


def same_runs(a: Path, b: Path) -> bool:
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in FILES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    (result,) = run(folder, method__name="dc_sgd_e", method__noise_multiplier=1.0)
    return folder, result


DC = {"method__name": "dc_sgd_e", "method__noise_multiplier": 1.0}


class TestFolder:
    def test_what_is_written(self, whole):
        folder, result = whole
        rows = RunFolder(folder).released()
        assert [row["step"] for row in rows] == [2, 4, 6, 8]
        assert rows[-1]["accuracy"] == result.accuracy
        assert rows[-1]["epoch"] == pytest.approx(8 * 12 / N)
        steps = RunFolder(folder).steps()
        assert steps["step"] == list(range(8))
        assert rows[-1]["threshold"] == steps["threshold"][-1]
        assert not (folder / "diagnostics.jsonl").exists()
        ledger = RunFolder(folder).read_ledger()
        assert ledger == Ledger("stripes").add(Steps(result.plan.method, result.plan.sampling, 8))
        # Epsilon in the file is that of an independent reading of the ledger, at every evaluation.
        for row in rows:
            entry = ledger.entries[0].replace(steps=row["step"])
            expected = Ledger("stripes", entries=(entry,)).epsilon(1e-3, "rdp")
            assert row["epsilon"] == pytest.approx(expected, rel=1e-9)

    def test_the_stored_experiment_runs_the_same_again(self, whole, tmp_path):
        folder, _ = whole
        stored = RunFolder(folder).read_config()
        (again,) = train(stored, DATA, tmp_path / "again")
        assert same_runs(folder, tmp_path / "again")
        assert same_bytes(again.state, whole[1].state)

    def test_keys_and_diagnostics_are_not_in_what_may_be_published(self, whole):
        folder, result = whole
        words = [
            jax.random.key_data(key).tolist()
            for key in (result.state.key, result.state.opt_state[0].key)
        ]
        for name in FILES:
            text = (folder / name).read_text()
            assert not any(str(word) in text for pair in words for word in pair)
            assert NOT_PRIVATE not in text

    def test_a_folder_that_holds_a_run_is_refused(self, whole):
        with pytest.raises(ValueError, match="holds a run: expected resume=True"):
            run(whole[0], **DC)

    def test_checkpoints_are_for_their_owner(self, whole):
        assert (whole[0] / "checkpoints").stat().st_mode & 0o077 == 0

    def test_diagnostics_are_apart_and_labelled(self, tmp_path):
        run(tmp_path / "a", run__diagnostics=True)
        rows = RunFolder(tmp_path / "a").diagnostics()
        assert [row["step"] for row in rows] == [2, 4, 6, 8]
        assert all(row["label"] == NOT_PRIVATE for row in rows)
        last = rows[-1]
        program = build_program(experiment(**RUN), DATA)
        state = Run.resume(program, RunFolder(tmp_path / "a"), MARKS).state
        params = {k: np.asarray(v, np.float64) for k, v in flat(state.params).items()}
        from tests.train.test_program import softmax_gradients  # noqa: PLC0415

        by_bias, by_kernel = softmax_gradients(params, DATA.train.x, DATA.train.y)
        norms = np.sqrt((by_bias**2).sum(1) + (by_kernel**2).sum((1, 2)))
        assert last["clipped_fraction"] == pytest.approx(np.mean(norms > 0.7))
        assert last["norm_quantiles"]["0.5"] == pytest.approx(np.median(norms), rel=1e-4)
        assert last["mean_weight"] == pytest.approx(np.minimum(1, 0.7 / norms).mean(), rel=1e-4)
        assert sum(last["norms"]["counts"]) == N
        run(tmp_path / "b")
        for name in ("released.jsonl", "steps.csv", "ledger.json"):  # looking changes nothing
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


class TestResume:
    @pytest.mark.parametrize("steps", [0, 1, 4, 6])
    def test_a_run_that_stopped_ends_with_the_same_bytes(self, whole, tmp_path, stop_after, steps):
        patched = stop_after(steps)
        with pytest.raises(Killed):
            run(tmp_path / "run", **DC)
        patched.undo()
        (result,) = run(tmp_path / "run", resume=True, **DC)
        assert same_runs(tmp_path / "run", whole[0])
        assert same_bytes(result.state, whole[1].state)

    def test_resuming_a_finished_run_changes_nothing(self, whole, tmp_path):
        run(tmp_path / "run", **DC)
        before = {name: (tmp_path / "run" / name).read_bytes() for name in FILES}
        (result,) = run(tmp_path / "run", resume=True, **DC)
        assert {name: (tmp_path / "run" / name).read_bytes() for name in FILES} == before
        assert result.accuracy == whole[1].accuracy

    def test_a_damaged_checkpoint_is_refused_and_the_one_before_serves(
        self, whole, tmp_path, stop_after
    ):
        patched = stop_after(6)
        with pytest.raises(Killed):
            run(tmp_path / "run", **DC)
        patched.undo()
        newest = sorted((tmp_path / "run" / "checkpoints").glob("*/step_*"))[-1]
        assert newest.name == "step_00000006"
        victim = max((f for f in newest.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
        victim.write_bytes(victim.read_bytes()[:-7])
        said = []
        (result,) = run(tmp_path / "run", resume=True, say=said.append, **DC)
        assert any("checkpoint of step 6 refused" in text for text in said)
        assert same_runs(tmp_path / "run", whole[0])
        assert same_bytes(result.state, whole[1].state)

    def test_checkpoints_come_by_time_between_evaluations_too(self, tmp_path, monkeypatch):
        saved, save = [], Run.save
        monkeypatch.setattr(Run, "save", lambda run: saved.append(int(run.state.step)) or save(run))
        monkeypatch.setattr(loop, "_SECONDS_PER_CALL", 0.0)  # one step a call
        monkeypatch.setattr(loop, "_SECONDS_PER_CHECKPOINT", 0.0)
        run(tmp_path / "run", run__checkpoint_every="none", run__evaluate_every=8)
        assert saved == list(range(9))

    def test_a_foreign_checkpoint_is_refused(self, tmp_path):
        run(tmp_path / "a")
        run(tmp_path / "b", run__seed=6, method__threshold=0.9)
        a, b = (next((tmp_path / name / "checkpoints").iterdir()) for name in "ab")
        for mine, other in zip(sorted(a.iterdir()), sorted(b.iterdir()), strict=True):
            mine.rename(tmp_path / mine.name)
            other.rename(mine)
        with pytest.raises(ValueError, match="refused"):
            run(tmp_path / "a", resume=True)

    def test_the_ledger_is_ahead_of_what_is_released(self, tmp_path, stop_after):
        patched = stop_after(1)  # the first evaluation would have been at step 2
        with pytest.raises(Killed):
            run(tmp_path / "run")
        assert RunFolder(tmp_path / "run").read_ledger().entries[0].steps == 2
        patched.undo()
        patched = stop_after(5)
        with pytest.raises(Killed):
            run(tmp_path / "run", resume=True)
        assert RunFolder(tmp_path / "run").read_ledger().entries[0].steps == 6


class TestChanges:
    def begun(self, folder, stop_after, **changes):
        patched = stop_after(5)
        with pytest.raises(Killed):
            run(folder, **changes)
        patched.undo()

    def test_a_changed_experiment_is_refused_by_its_change(self, tmp_path, stop_after):
        self.begun(tmp_path / "run", stop_after)
        with pytest.raises(ValueError, match=r"learning_rate was 0.5 and is 0.25.*rekey=True"):
            run(tmp_path / "run", resume=True, optimizer__learning_rate=0.25)
        run(tmp_path / "run", resume=True, run__evaluate_every=4)  # no change of what is released

    def test_an_edited_config_is_refused(self, tmp_path, stop_after):
        self.begun(tmp_path / "run", stop_after)
        folder = RunFolder(tmp_path / "run")
        folder.write_config(folder.read_config().set("optimizer.learning_rate", 0.25))
        with pytest.raises(ValueError, match=r"learning_rate was 0.5 and is 0.25"):
            run(tmp_path / "run", resume=True, optimizer__learning_rate=0.25)

    def test_on_request_it_goes_on_with_new_keys_and_an_entry(self, tmp_path, stop_after):
        folder = RunFolder(tmp_path / "run")
        self.begun(folder.path, stop_after)
        old = Run.resume(build_program(experiment(**RUN), DATA), folder, MARKS)
        assert int(old.state.step) == 3
        said_before = folder.read_ledger()
        assert said_before.entries[0].steps == 6  # announced, and so perhaps seen
        (result,) = run(folder.path, resume=True, rekey=True, method__noise_multiplier=2.0)
        first, second = result.ledger.entries
        assert (first.steps, first.mechanism.noise_multiplier) == (6, 1.0)
        assert (second.start, second.steps) == (3, 5)
        assert second.mechanism.noise_multiplier == 2.0
        assert folder.read_ledger() == result.ledger
        assert result.epsilon == pytest.approx(result.ledger.epsilon(1e-3, "rdp"))
        keys = [old.state.key, old.state.opt_state[0].key]
        keys += [result.state.key, result.state.opt_state[0].key]
        assert len({jax.random.key_data(key).tobytes() for key in keys}) == 4
        # The new experiment is the run's own from now on, and killed again it goes on as such.
        assert folder.read_config().method["noise_multiplier"] == 2.0
        (again,) = run(folder.path, resume=True, method__noise_multiplier=2.0)
        assert again.ledger == result.ledger
        with pytest.raises(ValueError, match="was"):
            run(folder.path, resume=True)

    def test_going_back_does_not_go_back_to_the_old_noise(self, tmp_path, stop_after):
        folder = RunFolder(tmp_path / "run")
        self.begun(folder.path, stop_after)
        marks = [folder.identity().lineage]
        for rate in (0.25, 0.5):
            self_stop = stop_after(5)
            with pytest.raises(Killed):
                run(folder.path, resume=True, rekey=True, optimizer__learning_rate=rate)
            self_stop.undo()
            marks.append(folder.identity().lineage)
        assert len(set(marks)) == 3

    def test_the_budget_counts_what_was_spent_before(self, tmp_path, stop_after):
        self.begun(tmp_path / "run", stop_after)
        spent = RunFolder(tmp_path / "run").read_ledger().epsilon(1e-3, "rdp")
        changes = {"method__noise_multiplier": 1.1, "train__steps": 500}
        (result,) = run(
            tmp_path / "run", resume=True, rekey=True, privacy__epsilon=2 * spent, **changes
        )
        assert spent < result.epsilon <= 2 * spent
        assert 3 < result.plan.steps < 500
        with pytest.raises(ValueError, match="all of it was spent"):
            run(tmp_path / "run", resume=True, rekey=True, privacy__epsilon=1.5 * spent, **changes)

    def test_a_change_that_needs_another_state_is_refused(self, tmp_path, stop_after):
        self.begun(tmp_path / "run", stop_after)
        with pytest.raises(ValueError, match="expected a change that keeps the parameters"):
            run(tmp_path / "run", resume=True, rekey=True, optimizer__name="adam")


class TestSeeds:
    def test_one_seed_one_run_two_seeds_two(self, tmp_path):
        results = [
            run(tmp_path / name, run__seed=seed)[0]
            for name, seed in zip("abc", (1, 1, 2), strict=True)
        ]
        assert same_bytes(results[0].state, results[1].state)
        assert same_runs(tmp_path / "a", tmp_path / "b")
        assert not same_bytes(results[0].state.params, results[2].state.params)

    def test_without_a_seed_the_operating_system_gives_the_keys(self, tmp_path):
        keys = [jax.random.key_data(root_key()).tobytes() for _ in range(8)]
        assert len(set(keys)) == 8
        results = [run(tmp_path / name, run__seed="none")[0] for name in "ab"]
        assert not same_bytes(results[0].state.params, results[1].state.params)

    def test_experiments_with_one_seed_share_neither_batches_nor_noise(self, tmp_path):
        """One noise on two signals would be taken away by subtracting the runs."""
        programs = [
            build_program(experiment(**RUN, optimizer__learning_rate=rate), DATA)
            for rate in (0.5, 0.25)
        ]
        results = [
            run(tmp_path / str(rate), optimizer__learning_rate=rate)[0] for rate in (0.5, 0.25)
        ]
        draws = [
            np.asarray(program.draw(result.state._replace(step=0)).indices)
            for program, result in zip(programs, results, strict=True)
        ]
        assert set(draws[0]) != set(draws[1])
        assert results[0].state.opt_state[0].key != results[1].state.opt_state[0].key


class TestBudget:
    def test_a_run_with_its_own_noise_stops_when_the_budget_is_spent(self, tmp_path):
        (result,) = run(tmp_path / "run", train__steps=400, privacy__epsilon=3.0)
        assert result.plan.stopped_early
        assert result.epsilon <= 3.0
        longer = result.ledger.replace(
            entries=(result.ledger.entries[0].replace(steps=result.plan.steps + 1),)
        )
        assert longer.epsilon(1e-3, "rdp") > 3.0
        assert int(result.state.step) == result.plan.steps

    def test_a_method_without_a_guarantee_runs_and_says_so(self, tmp_path):
        (result,) = run(tmp_path / "run", method__name="auto_dp_sgd", method__noise_multiplier=1.0)
        assert result.ledger is None
        assert result.epsilon is None
        assert not (tmp_path / "run" / "ledger.json").exists()
        assert "No guarantee" in (tmp_path / "run" / "statement.md").read_text()
        # The paper's average sensitivity is a number of the data.
        folder = RunFolder(tmp_path / "run")
        assert folder.released()[-1]["threshold"] is None
        assert folder.diagnostics()[-1]["average_sensitivity"] > 0


class TestExport:
    def test_the_model_its_experiment_and_its_statement(self, whole, tmp_path):
        folder, result = whole
        files = export(RunFolder(folder), DATA, tmp_path / "out")
        assert {f.name for f in files} == {f.name for f in (tmp_path / "out").iterdir()}
        with np.load(tmp_path / "out" / "model.npz", allow_pickle=False) as model:
            params = {name: model[name] for name in model.files}
        expected = flat(result.state.params)
        assert params.keys() == expected.keys()
        assert all(np.array_equal(params[name], expected[name]) for name in params)
        assert (tmp_path / "out" / "statement.md").read_bytes() == (
            folder / "statement.md"
        ).read_bytes()
        secrets = [
            np.asarray(jax.random.key_data(key)).tobytes()
            for key in (result.state.key, result.state.opt_state[0].key)
        ]
        for file in files:
            assert not any(secret in file.read_bytes() for secret in secrets)
        assert "seed =" not in (tmp_path / "out" / "config.toml").read_text()
        with pytest.raises(ValueError, match="expected a folder that does not exist yet"):
            export(RunFolder(folder), DATA, tmp_path / "out")

    def test_a_run_may_start_from_an_exported_model(self, whole, tmp_path):
        export(RunFolder(whole[0]), DATA, tmp_path / "out")
        weights = str(tmp_path / "out" / "model.npz")
        (result,) = run(tmp_path / "run", model__weights=weights, train__steps=1)
        stored = RunFolder(tmp_path / "run").read_config().model
        assert len(stored.weights_sha256) == 64
        moved = np.abs(
            flat(result.state.params)["dense/kernel"] - flat(whole[1].state.params)["dense/kernel"]
        )
        assert 0 < moved.max() < 1.0
        changed = dict(np.load(weights))
        np.savez(weights, **{name: value + 1 for name, value in changed.items()})
        with pytest.raises(ValueError, match="has the sha256"):
            train(RunFolder(tmp_path / "run").read_config(), DATA, tmp_path / "again")


def test_half_a_line_at_the_end_of_a_file_is_no_trouble(tmp_path):
    folder = RunFolder(tmp_path)
    row = {"step": 2, "epoch": 1.0, "accuracy": 0.5, "epsilon": None}
    folder.add_released(row)
    with (tmp_path / "released.jsonl").open("a") as file:
        file.write('{"step": 4, "accu')
    assert folder.released() == [row]
    folder.cut(9)
    assert json.loads((tmp_path / "released.jsonl").read_text()) == row


def test_thresholds_by_group_are_written_and_read_back(tmp_path):
    base = experiment(**RUN)
    method = dict(base.method)
    method |= {"groups": {"dense": {"bias": "a", "kernel": "b"}}, "threshold": [0.3, 0.6]}
    (result,) = train(replace(base, method=method), DATA, tmp_path / "run")
    steps = RunFolder(tmp_path / "run").steps()
    assert steps["threshold"] == [pytest.approx([0.3, 0.6])] * 8
    assert result.threshold == pytest.approx([0.3, 0.6])
