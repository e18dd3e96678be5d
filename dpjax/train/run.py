"""One run: its program, what it has released, and its folder."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import chex
import jax
import numpy as np

from dpjax.accounting import Ledger, Steps, privacy_statement
from dpjax.accounting.missing_mass import NoEpsilonError
from dpjax.accounting.statement import NOT_COUNTED
from dpjax.data import HASHED_ROWS, Dataset
from dpjax.mechanism import Mechanism
from dpjax.privatize import PrivatizeState, Released
from dpjax.train import mesh
from dpjax.train.checkpoint import CheckpointError, Checkpoints, describe, difference
from dpjax.train.config import Experiment
from dpjax.train.folder import (
    RunFolder,
    RunIdentity,
    differences,
    environment,
    member_key,
    next_lineage,
    root_key,
)
from dpjax.train.network import starting_weights
from dpjax.train.plan import Plan
from dpjax.train.step import Program, Scores, TrainState, build_program

__all__ = ["Run", "resume_all"]

_STEPS_KEPT = 10_000  # the maximum number of rows in steps.csv

_SAME_SCALE = 2.0**-24  # half the relative spacing of float32, for comparing noise scales

_SEEDED = (
    "**Not to be published: the noise was drawn from a fixed seed, and whoever guesses the seed "
    "can take it away.** What follows holds for keys that nobody knows.\n\n"
)


@dataclass(frozen=True)
class Run:
    """A run: its program and plan, its current state, and its folder and ledger.

    `begin` starts a run, `resume` restores one from its checkpoints, and `rekey` turns one into
    another experiment with new keys. Nothing else creates or changes a plan that is run.

    Attributes:
        program: the program; ``program.plan`` is the plan.
        folder: the run's folder.
        identity: the run's identity.
        state: the current state; private.
        checkpoints: its checkpoints.
        data: fingerprints by which the same examples are recognised; private.
        before: what the run released as other experiments, before it was changed.
        start: the step at which this experiment took over.
        notes: sentences for the user, such as checkpoints that were refused.
    """

    program: Program
    folder: RunFolder
    identity: RunIdentity
    state: TrainState
    checkpoints: Checkpoints = field(repr=False)
    data: Mapping[str, str] = field(repr=False)
    before: Ledger
    start: int = 0
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan, which is what runs and is accounted."""
        return self.program.plan

    @property
    def moved(self) -> str:
        """What has changed in the environment, if there are steps left to take; otherwise ""."""
        if int(self.state.step) >= self.plan.steps:
            return ""
        return differences(self.identity.environment, environment())

    def check_environment(self) -> None:
        """Raises if repeating a step in this environment could draw other noise."""
        if self.moved:
            how = "; rekey=True resumes with keys of its own and an entry in the ledger"
            raise ValueError(
                f"{self.folder.path}: {self.moved}: expected what the run was begun with, which "
                "draws the same noise for a step that is repeated"
                f"{how if self.plan.private else ''}"
            )

    @classmethod
    def begin(
        cls,
        program: Program,
        folder: RunFolder,
        data: Mapping[str, str],
        root: jax.Array,
        member: int = 0,
        members: int = 1,
        layout: mesh.Layout = mesh.ONE_DEVICE,
    ) -> Self:
        """Begins a run in a newly created folder; its state is on disk before any step is taken.

        Args:
            program: the program.
            folder: the run's folder.
            data: the fingerprints of the examples.
            root: the root key, into which each member's identity is folded.
            member: the index of this run among several.
            members: how many runs are begun together.
            layout: where to place the state.
        """
        experiment = program.plan.experiment
        identity = RunIdentity(experiment.identity, member, members, program.varied)
        if mesh.is_primary():
            folder.write_config(experiment)
        key = member_key(root, identity.lineage, member)
        weights = starting_weights(experiment, program.network)
        state = jax.jit(program.init)(key, weights)
        state = layout.placed(state)
        checkpoints = _checkpoints(folder, identity)
        run = cls(program, folder, identity, state, checkpoints, data, program.plan.ledger())
        run.save()
        checkpoints.wait()
        if mesh.is_primary():
            folder.commit(identity)
        return run

    @classmethod
    def resume(
        cls,
        program: Program,
        folder: RunFolder,
        data: Mapping[str, str],
        step: int | None = None,
        layout: mesh.Layout = mesh.ONE_DEVICE,
    ) -> Self:
        """Returns a run as of its newest sound checkpoint, or of the checkpoint at a given step.

        Args:
            program: the program.
            folder: the run's folder.
            data: the fingerprints of the examples, which must be those that the run began with.
            step: the step of the checkpoint; None for the newest.
            layout: where to place the state; may differ from the previous layout.

        Raises:
            CheckpointError: if no checkpoint is sound.
            ValueError: if the checkpoint is from another experiment or from other data.
        """
        identity, asked = folder.identity(), program.plan.experiment
        _refuse_changes(folder, folder.read_config(), asked)
        checkpoints = _checkpoints(folder, identity)
        like = layout.like(jax.eval_shape(program.init, root_key(0)))
        restored = checkpoints.restore(like, step)
        if restored is None:
            raise ValueError(f"{folder.path}: no checkpoint is left; expected one to resume from")
        _refuse_changes(folder, Experiment.from_plain(restored.meta["experiment"]), asked)
        for split, mark in data.items():
            if mark != restored.meta["data"][split]:
                raise ValueError(
                    f"{folder.path}: the {split} examples of {asked.data.name} have changed: "
                    "expected those that the run was begun with"
                )
        before, start = Ledger.from_plain(restored.meta["before"]), int(restored.meta["start"])
        return cls(
            program,
            folder,
            identity,
            restored.state,
            checkpoints,
            data,
            before,
            start,
            restored.refused,
        )._within_budget()

    def rekey(self, program: Program) -> Self:
        """Resumes as another experiment or in another environment, with new keys.

        The change is entered in the ledger. Everything that the ledger on disk lists as released
        counts, even beyond the checkpoint, and the new experiment's budget must cover all of it.
        Call `check_successor` first: it refuses what cannot be done.
        """
        run = self._succeeded_by(program)
        key = member_key(self.state.key, run.identity.lineage, run.identity.member)
        run = replace(run, state=_rekeyed(program, self.state, key))
        run.save()
        run.checkpoints.wait()
        if mesh.is_primary():
            run.folder.change(run.identity, program.plan.experiment)
            shutil.rmtree(run.folder.checkpoints(self.identity.lineage), ignore_errors=True)
        return run

    def check_successor(self, program: Program) -> None:
        """Raises if this run cannot become the given experiment; changes nothing."""
        self._succeeded_by(program)
        new = jax.eval_shape(program.init, self.state.key)
        why = difference(describe(self.state), describe(new))
        if why is not None:
            changed = _changes(self.plan.experiment, program.plan.experiment)
            raise ValueError(
                f"{self.folder.path}: {changed}: expected a change that keeps the parameters and "
                f"the state of the optimizer, but {why}"
            )

    def with_rerounding(self, figure: float) -> Self:
        """Returns the run, having recorded by how much its first step here enlarged the noise.

        A repeated step gets the same noise. At another scale, the difference between the two
        releases would reveal the noise itself, so a changed enlargement is refused. This is called
        before anything about the step is written.

        Args:
            figure: the enlargement, as a fraction.

        Raises:
            ValueError: if earlier steps of the run had another enlargement.
        """
        known = self.identity.rerounding
        if not self.plan.private:
            return self
        if known is None:
            identity = replace(self.identity, rerounding=figure)
            if mesh.is_primary():
                self.folder.commit(identity)
            return replace(self, identity=identity)
        if not abs(figure - known) <= _SAME_SCALE:
            raise ValueError(
                f"{self.folder.path}: here its noise would be enlarged by {figure:.2g} for the "
                f"rounding of sums, and it was enlarged by {known:.2g}: expected run.mesh and "
                "run.sharding as they were, since a repeated step would release the same noise at "
                "another scale"
            )
        return self

    def save(self) -> None:
        """Starts writing a checkpoint in the background."""
        meta = {
            "experiment": self.plan.experiment.to_plain(),
            "data": dict(self.data),
            "before": self.before.to_plain(),
            "start": self.start,
        }
        self.checkpoints.save(int(self.state.step), self.state, meta)

    def ledger(self, step: int) -> Ledger | None:
        """Returns the ledger at a step; None if there is no guarantee to account for."""
        if not self.plan.private or not isinstance(self.plan.method, Mechanism):
            return None
        return self.plan.ledger(step, self.before, self.start)

    def announce(self, step: int) -> None:
        """Enters the steps up to `step` in the ledger on disk, before they are taken.

        A run that resumes from an older checkpoint repeats steps, which costs nothing because they
        are the same bit for bit; the ledger on disk never becomes shorter. With several processes,
        all of them wait until it is written.
        """
        if mesh.is_primary():
            self._announce(step)
        mesh.wait_for_all("ledger")

    def _announce(self, step: int) -> None:
        self.folder.remove_statement()
        ledger, written = self.ledger(step), self.folder.read_ledger()
        if ledger is None:
            return
        if written is not None and not _continues(written, ledger):
            raise ValueError(f"{self.folder.path}/ledger.json: expected the ledger of this run")
        if written is None or _length(written) <= _length(ledger):
            self.folder.write_ledger(ledger)

    def epsilon(self, step: int) -> float | None:
        """Returns the epsilon spent up to a step; None without a guarantee."""
        ledger = self.ledger(step)
        return None if ledger is None else self.plan.epsilon(ledger)

    def evaluation(
        self, step: int, scores: Scores, released: Released, epsilon: float | None
    ) -> dict[str, Any]:
        """Returns the public numbers of an evaluation."""
        return {
            "step": step,
            "epoch": step / self.plan.steps_per_epoch,
            "accuracy": float(scores.accuracy),
            "loss": float(scores.loss),
            "threshold": _plain(released.threshold),
            "sigma": _plain(released.sigma),
            "sigma_gradient": _plain(released.sigma_gradient),
            "epsilon": epsilon,
            "delta": self.plan.delta,
        }

    def add_steps(self, start: int, released: Released) -> None:
        """Writes the public numbers of steps from `start` on; in a long run, of every n-th step."""
        every = -(-self.plan.asked // _STEPS_KEPT)
        first = -start % every
        self.folder.add_steps(
            start + first, every, jax.tree.map(lambda rows: rows[first::every], released)
        )

    def statement(self, step: int) -> str:
        """Returns the privacy statement at a step."""
        ledger, experiment = self.ledger(step), self.plan.experiment
        title = f"# Privacy statement: {experiment.data.name}\n\n"
        if ledger is None:
            return f"{title}{self.plan.method.guarantee.statement}\n"
        excluded = list(NOT_COUNTED)
        if experiment.model.weights is not None or experiment.model.pretrained is not None:
            excluded.append(
                "what the weights that the model started from cost, if the same data made them"
            )
        try:
            counted = privacy_statement(
                ledger, self.plan.delta, self.plan.accountant, tuple(excluded)
            )
        except NoEpsilonError as error:
            return f"{title}No guarantee: {error}.\n"
        if self.data["training"].startswith("some"):
            counted += (
                f"\nThe examples are recognised by a fingerprint of at most {HASHED_ROWS} of them, "
                "not of all: a change of others between two parts of the run would not be "
                "noticed.\n"
            )
        return counted if experiment.run.seed is None else _SEEDED + counted

    def _succeeded_by(self, program: Program) -> Self:
        """Returns this run as another experiment from its current step on, with its old state."""
        step = int(self.state.step)
        self._check_plan(program.plan, step)
        lineage = next_lineage(self.identity.lineage, program.plan.experiment.identity, step)
        identity = replace(
            self.identity, lineage=lineage, environment=environment(), rerounding=None
        )
        known = [self.folder.read_ledger(), self.ledger(step)]
        run = replace(
            self,
            program=program,
            identity=identity,
            checkpoints=_checkpoints(self.folder, identity),
            before=max((ledger for ledger in known if ledger is not None), key=_length),
            start=step,
        )._within_budget()
        run.epsilon(step + 1)  # raises now if the accountant cannot handle the whole ledger
        return run

    def _check_plan(self, plan: Plan, step: int) -> None:
        if not self.plan.private or not plan.private:
            raise ValueError(
                f"method {self.plan.name} to {plan.name}: expected methods with a "
                "guarantee, since a run cannot gain or lose one on the way"
            )
        old, new = self.plan.experiment, plan.experiment
        fixed = {
            "data.name": (old.data.name, new.data.name),
            "privacy.unit": (old.privacy.unit, new.privacy.unit),
            "model.weights": (old.model.weights_sha256, new.model.weights_sha256),
            "model.pretrained": (old.model.pretrained_sha256, new.model.pretrained_sha256),
        }
        for path, (was, now) in fixed.items():
            if was != now:
                raise ValueError(f"{path} was {was!r} and is {now!r}: expected a new run for it")
        if plan.asked <= step:
            raise ValueError(
                f"train.steps = {plan.asked}: expected more than the {step} that were taken"
            )

    def _within_budget(self) -> Self:
        """Returns the run with no more steps planned than the budget allows after `before`."""
        if not self.before.entries:
            return self  # the plan was already made for the whole budget
        plan = self.plan.within_budget(self.before, self.start)
        return replace(self, program=replace(self.program, plan=plan))


def resume_all(
    runs: Sequence[tuple[Program, RunFolder]],
    dataset: Dataset,
    marks: Mapping[str, str],
    rekey: bool,
    layout: mesh.Layout,
) -> list[Run]:
    """Resumes runs that were begun together; all are checked before any is changed.

    Several runs resume from the newest step at which all have a sound checkpoint, if there is one;
    otherwise each resumes from its own newest checkpoint.

    Args:
        runs: the program asked for and the folder of each run.
        dataset: the data.
        marks: the fingerprints of the data.
        rekey: whether a run may resume with new keys if the experiment or the environment has
            changed.
        layout: where to place the states.

    Raises:
        CheckpointError: if no checkpoint is sound.
        ValueError: if the experiment, the data, the keys or the environment have changed.
    """
    steps: list[int | None] = [None]
    if len(runs) > 1:
        found = [set(_checkpoints(each, each.identity()).steps()) for _, each in runs]
        steps = [*sorted(set.intersection(*found), reverse=True), None]
    refused: list[str] = []
    for step in steps:
        try:
            old = [
                _as_it_was(program, folder, dataset, marks, step, rekey, layout)
                for program, folder in runs
            ]
        except CheckpointError as error:
            refused.append(str(error))
            continue
        return [
            replace(_changed(program, run), notes=(*refused, *run.notes))
            for (program, _), run in zip(runs, old, strict=True)
        ]
    raise CheckpointError("; ".join(refused))


def _as_it_was(
    program: Program,
    folder: RunFolder,
    dataset: Dataset,
    marks: Mapping[str, str],
    step: int | None,
    rekey: bool,
    layout: mesh.Layout,
) -> Run:
    """Returns a run as in its checkpoint; raises if the experiment changed and `rekey` is False."""
    stored, asked = folder.read_config(), program.plan.experiment
    if stored.run.seed != asked.run.seed:
        raise ValueError(
            f"{folder.path}: run.seed = {asked.run.seed}: expected {stored.run.seed}, since a run "
            "resumes with the keys that it has"
        )
    program = replace(program, varied=folder.identity().varied)
    if not rekey or stored.identity == asked.identity:
        run = Run.resume(program, folder, marks, step, layout)
        if not rekey:
            run.check_environment()
        return run
    old = Run.resume(build_program(stored, dataset, program.varied), folder, marks, step, layout)
    old.check_successor(program)
    return old


def _changed(program: Program, old: Run) -> Run:
    """Rekeys a run if its experiment or its environment has changed."""
    if mesh.is_primary():
        old.folder.settle()
    asked = program.plan.experiment.identity
    same = old.plan.experiment.identity == asked and not old.moved
    run = old if same else old.rekey(replace(program, varied=old.program.varied))
    if mesh.is_primary():
        run.folder.cut(int(old.state.step))
    return run


def _changes(old: Experiment, new: Experiment) -> str:
    """Describes the values in which two experiments differ, apart from `run`."""
    tables = (old.to_plain(), new.to_plain())
    return differences(*({k: v for k, v in table.items() if k != "run"} for table in tables))


def _refuse_changes(folder: RunFolder, stored: Experiment, asked: Experiment) -> None:
    if stored.identity != asked.identity:
        raise ValueError(
            f"{folder.path}: {_changes(stored, asked)}: expected the experiment as it was; "
            "rekey=True resumes with the change, with keys of its own and an entry in the ledger"
        )


def _checkpoints(folder: RunFolder, identity: RunIdentity) -> Checkpoints:
    return Checkpoints(folder.checkpoints(identity.lineage), identity.mark)


def _rekeyed(program: Program, state: TrainState, key: jax.Array) -> TrainState:
    """Returns the state with all keys replaced by those of a new run with this key."""
    fresh = jax.jit(program.init)(key)
    opt_state = jax.tree.map(
        lambda old, new: old._replace(key=new.key) if isinstance(old, PrivatizeState) else old,
        state.opt_state,
        fresh.opt_state,
        is_leaf=lambda node: isinstance(node, PrivatizeState),
    )
    return state._replace(opt_state=opt_state, key=key, vary=fresh.vary)


def _continues(written: Ledger, ledger: Ledger) -> bool:
    """Returns whether two ledgers agree except in the number of steps of the last entry."""
    pair = []
    for entries in (written.entries, ledger.entries):
        last = entries[-1:] if len(entries) == len(ledger.entries) else ()
        rest = entries[: len(ledger.entries) - 1]
        pair.append((rest, [entry.replace(steps=1) for entry in last]))
    same = pair[0] == pair[1]
    return same or written.entries == ledger.entries[:-1]


def _length(ledger: Ledger) -> int:
    return sum(entry.steps for entry in ledger.entries if isinstance(entry, Steps))


def _plain(value: chex.Numeric) -> float | list[float] | None:
    """Returns a number or list of numbers; None for numbers that a method does not release."""
    array = np.asarray(value, np.float64)
    return array.tolist() if np.isfinite(array).all() else None
