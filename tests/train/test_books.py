"""What a hostile reader tried on runs: books that say too little, half changes, lost files."""

import fcntl

import jax
import numpy as np
import pytest

from dpjax.accounting import Ledger, Steps
from dpjax.data import Split, fingerprints
from dpjax.train import RunFolder, build_program, export, train
from dpjax.train.feed import examples_of
from tests.train.small import Killed, N, experiment, images, stop_after

DATA = images()
RUN = {"run__seed": 5, "run__evaluate_every": 2, "run__checkpoint_every": 3, "train__steps": 8}


def run(folder, data=DATA, *, vary=None, resume=False, rekey=False, kill=None, **changes):
    """Trains; `kill` ends it after so many steps, as a kill would."""
    asked = experiment(**{**RUN, **changes})
    with pytest.MonkeyPatch.context() as patch:
        if kill is not None:
            stop_after(patch, kill)
            with pytest.raises(Killed):
                train(asked, data, folder, vary=vary, resume=resume, rekey=rekey)
            return None
        return train(asked, data, folder, vary=vary, resume=resume, rekey=rekey)


def fewer(rows):
    return DATA.__class__(
        DATA.name, Split(DATA.train.x[:rows], DATA.train.y[:rows]), DATA.test, 3, DATA.pixels
    )


class TestData:
    def test_another_number_of_examples_is_another_experiment(self, tmp_path):
        run(tmp_path / "run", fewer(60), kill=5)
        with pytest.raises(ValueError, match=r"data.examples was 60 and is 90"):
            run(tmp_path / "run", resume=True)
        stored = RunFolder(tmp_path / "run").read_config()
        with pytest.raises(ValueError, match=r"data.examples = 60: expected 90"):
            train(stored, DATA, tmp_path / "run", resume=True)

    def test_other_examples_are_refused_and_their_mark_is_not_published(self, tmp_path):
        run(tmp_path / "run", kill=5)
        x = DATA.train.x.copy()
        x[17, 0, 0] += 1
        other = DATA.__class__(DATA.name, Split(x, DATA.train.y), DATA.test, 3, DATA.pixels)
        for rekey in (False, True):
            with pytest.raises(ValueError, match="the training examples of stripes have changed"):
                run(tmp_path / "run", other, resume=True, rekey=rekey)
        run(tmp_path / "run", resume=True)
        export(RunFolder(tmp_path / "run"), DATA, tmp_path / "out")
        marks = fingerprints(DATA).values()
        public = [f for f in tmp_path.rglob("*") if f.is_file() and "checkpoints" not in f.parts]
        assert len(public) > 8
        assert not any(mark.encode() in f.read_bytes() for f in public for mark in marks)

    def test_another_data_set_than_the_experiment_names(self, tmp_path):
        with pytest.raises(ValueError, match=r"data.name = 'digits': expected 'stripes'"):
            run(tmp_path / "run", data__name="digits")

    @pytest.mark.parametrize("field", ["privacy__unit", "model__weights"])
    def test_a_run_cannot_change_what_its_ledger_is_about(self, tmp_path, field):
        run(tmp_path / "run", kill=5)
        values = {"privacy__unit": "one person", "model__weights": str(tmp_path / "w.npz")}
        np.savez(tmp_path / "w.npz", **{"dense/bias": np.ones(3, np.float32)})
        with pytest.raises(ValueError, match="expected a new run for it"):
            run(tmp_path / "run", resume=True, rekey=True, **{field: values[field]})


class TestLedger:
    def test_a_ledger_of_another_run_is_not_written_over(self, tmp_path):
        run(tmp_path / "run", kill=5)
        folder = RunFolder(tmp_path / "run")
        entry = folder.read_ledger().entries[0]
        other = entry.replace(sampling=entry.sampling.replace(rate=0.5), steps=2)
        folder.write_ledger(Ledger("stripes", entries=(other,)))
        with pytest.raises(ValueError, match="expected the ledger of this run"):
            run(tmp_path / "run", resume=True)

    def test_going_on_from_an_older_checkpoint_takes_nothing_out(self, tmp_path):
        run(tmp_path / "run", kill=5)
        folder = RunFolder(tmp_path / "run")
        assert folder.read_ledger().entries[0].steps == 6
        run(tmp_path / "run", resume=True, kill=3)  # goes on from 3, and has announced 4
        assert folder.read_ledger().entries[0].steps == 6

    def test_a_change_at_step_0_counts_what_was_announced(self, tmp_path):
        """A run killed before its first checkpoint but the one at step 0 may have been seen."""
        run(tmp_path / "run", run__checkpoint_every="none", kill=7)
        spent = RunFolder(tmp_path / "run").read_ledger()
        assert spent.entries[0].steps == 8
        budget = 1.3 * spent.epsilon(1e-3, "rdp")
        (result,) = run(
            tmp_path / "run",
            resume=True,
            rekey=True,
            optimizer__learning_rate=0.1,
            privacy__epsilon=budget,
            train__steps=300,
        )
        assert [(e.start, e.steps) for e in result.ledger.entries] == [
            (0, 8),
            (0, result.plan.steps),
        ]
        assert result.epsilon <= budget
        assert result.plan.stopped_early

    def test_a_lost_ledger_is_made_good_from_the_checkpoint(self, tmp_path):
        run(tmp_path / "run", kill=5)
        (tmp_path / "run" / "ledger.json").unlink()
        (result,) = run(tmp_path / "run", resume=True, rekey=True, optimizer__learning_rate=0.1)
        assert [(e.start, e.steps) for e in result.ledger.entries] == [(0, 3), (3, 5)]

    def test_the_statement_never_says_less_than_the_ledger(self, tmp_path):
        run(tmp_path / "run")
        assert (tmp_path / "run" / "statement.md").exists()
        run(tmp_path / "run", resume=True, rekey=True, train__steps=30, kill=15)
        assert not (tmp_path / "run" / "statement.md").exists()

    def test_a_seed_is_said_first_and_weights_among_what_is_not_counted(self, tmp_path):
        run(tmp_path / "run")
        export(RunFolder(tmp_path / "run"), DATA, tmp_path / "out")
        for folder in ("run", "out"):
            text = (tmp_path / folder / "statement.md").read_text()
            assert text.startswith("**Not to be published: the noise was drawn from a fixed seed")
            assert "the model started from" not in text
        weights = str(tmp_path / "out" / "model.npz")
        run(tmp_path / "next", run__seed="none", model__weights=weights)
        text = (tmp_path / "next" / "statement.md").read_text()
        assert text.startswith("# Privacy statement")
        assert "the model started from" in text
        export(RunFolder(tmp_path / "next"), DATA, tmp_path / "again")
        assert str(tmp_path) not in (tmp_path / "again" / "config.toml").read_text()

    def test_an_accountant_without_a_number_is_found_before_anything_changes(self, tmp_path):
        run(tmp_path / "run", kill=5)
        before = {f: f.read_bytes() for f in (tmp_path / "run").iterdir() if f.is_file()}
        with pytest.raises(ValueError, match="no bound is known"):
            run(tmp_path / "run", resume=True, rekey=True, train__sampling="fixed")
        assert {f: f.read_bytes() for f in before} == before
        run(tmp_path / "run", resume=True)


class TestEnd:
    def test_epsilon_is_that_of_the_state_and_not_of_the_last_evaluation(self, tmp_path):
        run(tmp_path / "run", run__evaluate_every=7, kill=5)
        (result,) = run(tmp_path / "run", resume=True, rekey=True, train__steps=6)
        expected = result.ledger.epsilon(1e-3, "rdp")
        assert result.epsilon == pytest.approx(expected)
        assert RunFolder(tmp_path / "run").released()[-1]["epsilon"] == pytest.approx(expected)

    def test_a_change_to_fewer_steps_than_were_taken_is_refused(self, tmp_path):
        run(tmp_path / "run", kill=5)
        with pytest.raises(ValueError, match=r"train.steps = 3: expected more than the 3"):
            run(tmp_path / "run", resume=True, rekey=True, train__steps=3)

    def test_a_refused_change_takes_nothing_away(self, tmp_path):
        run(tmp_path / "run", kill=5)
        before = (tmp_path / "run" / "steps.csv").read_bytes()
        with pytest.raises(ValueError, match="keeps the parameters"):
            run(tmp_path / "run", resume=True, rekey=True, optimizer__name="adam")
        assert (tmp_path / "run" / "steps.csv").read_bytes() == before

    def test_an_empty_table_of_steps_gets_its_header(self, tmp_path):
        run(tmp_path / "run", kill=0)
        (tmp_path / "run" / "steps.csv").touch()
        run(tmp_path / "run", resume=True)
        assert RunFolder(tmp_path / "run").steps()["step"] == list(range(8))


class TestMembers:
    @pytest.mark.slow
    def test_members_with_other_books_do_not_share_an_epsilon(self, tmp_path):
        """One goes on alone, then both are changed: it has more behind it and stops first."""
        seeds = {"run__seeds": 2, "train__steps": 40}
        run(tmp_path / "runs", kill=4, **seeds)
        run(tmp_path / "runs" / "seed-1", resume=True, kill=7, train__steps=40)
        lone = RunFolder(tmp_path / "runs" / "seed-1").read_ledger()
        assert lone.entries[0].steps == 8
        budget = 1.5 * lone.epsilon(1e-3, "rdp")
        results = run(
            tmp_path / "runs",
            resume=True,
            rekey=True,
            optimizer__learning_rate=0.1,
            privacy__epsilon=budget,
            **seeds,
        )
        for result in results:
            assert result.epsilon == pytest.approx(result.ledger.epsilon(1e-3, "rdp"))
            assert result.epsilon <= budget
        assert results[1].plan.steps < results[0].plan.steps

    def test_a_damaged_checkpoint_of_one_sends_all_back_together(self, tmp_path):
        seeds = {"run__seeds": 2}
        run(tmp_path / "whole", **seeds)
        run(tmp_path / "runs", kill=7, **seeds)
        newest = sorted((tmp_path / "runs" / "seed-1" / "checkpoints").glob("*/step_*"))[-1]
        (newest / "MANIFEST").write_bytes(b"")
        results = run(tmp_path / "runs", resume=True, **seeds)
        assert {int(result.state.step) for result in results} == {8}
        for name in ("seed-0", "seed-1"):
            for file in ("released.jsonl", "steps.csv", "ledger.json"):
                a, b = (tmp_path / run / name / file for run in ("whole", "runs"))
                assert a.read_bytes() == b.read_bytes()

    def test_what_several_members_cannot_share_runs_one_after_another(self, tmp_path, monkeypatch):
        monkeypatch.setattr("dpjax.train.feed.fits_on_device", lambda data, devices: False)
        assert len(run(tmp_path / "host", run__seeds=2)) == 2
        vary = {"method.threshold": [0.5, 0.9]}
        assert len(run(tmp_path / "mesh", vary=vary, run__mesh={"data": 2})) == 2

    def test_a_changed_number_is_the_one_that_runs(self, tmp_path):
        run(tmp_path / "run", vary={"method.threshold": [0.5]}, kill=5)
        (result,) = run(tmp_path / "run", vary={"method.threshold": [0.9]}, resume=True, rekey=True)
        assert result.threshold == pytest.approx(0.9)
        assert RunFolder(tmp_path / "run").steps()["threshold"] == pytest.approx(
            [0.5] * 3 + [0.9] * 5
        )

    def test_one_member_of_several_that_vary_goes_on_alone(self, tmp_path):
        run(tmp_path / "runs", vary={"method.threshold": [0.5, 0.9]}, kill=5)
        (result,) = run(
            tmp_path / "runs" / "threshold-0.9-seed-0", resume=True, method__threshold=0.9
        )
        assert int(result.state.step) == 8

    def test_values_that_are_written_alike_are_told_apart(self, tmp_path):
        results = run(tmp_path / "runs", vary={"method.threshold": [0.1, 0.1000001]})
        assert len({result.folder.path for result in results}) == 2
        with pytest.raises(ValueError, match="comes twice"):
            run(tmp_path / "more", vary={"method.threshold": [0.1, 0.1]})


def test_numbers_that_are_equal_are_the_same_experiment():
    for path, whole in (("privacy__epsilon", 4), ("train__epochs", 2)):
        assert experiment(**{path: whole}).identity == experiment(**{path: float(whole)}).identity


def test_weights_count_by_their_content(tmp_path):
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", **{"dense/bias": np.ones(3, np.float32)})
    plans = [
        build_program(experiment(model__weights=str(tmp_path / f"{name}.npz")), DATA).plan
        for name in ("a", "b")
    ]
    assert plans[0].experiment.identity == plans[1].experiment.identity


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    run(tmp_path / "run", kill=5)
    with (tmp_path / "run" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is training here"):
            run(tmp_path / "run", resume=True)
    run(tmp_path / "run", resume=True)


def test_the_schedule_of_the_learning_rate_does_not_follow_the_budget():
    rate = {"name": "linear_schedule", "init_value": 1.0, "end_value": 0.0}
    changes = {"optimizer__learning_rate": rate, "train__steps": 400}
    whole = build_program(experiment(**changes), DATA)
    cut = build_program(experiment(**changes, privacy__epsilon=2.0), DATA)
    assert cut.plan.steps < 100 < whole.plan.steps
    states = [jax.jit(p.init)(jax.random.key(0)) for p in (whole, cut)]
    examples = examples_of(DATA.train)
    moved = []
    for program, state in zip((whole, cut), states, strict=True):
        step = jax.jit(program.step)
        for _ in range(3):
            state, _ = step(state, examples)  # noqa: PLW2901
        moved.append(state.params)
    for a, b in zip(*map(jax.tree.leaves, moved), strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_entered_by_hand_are_what_the_ledger_says(tmp_path):
    (result,) = run(tmp_path / "run")
    plan = result.plan
    assert plan.dataset_size == N
    assert result.ledger.entries == (Steps(plan.method, plan.sampling, 8),)
