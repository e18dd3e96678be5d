"""Beginning a run, going on with one, and going on as another experiment."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax

from dpjax.privatize import PrivatizeState
from dpjax.train import leaves
from dpjax.train.bookkeeping import Book
from dpjax.train.checkpoint import Checkpoints, Restored
from dpjax.train.config import Experiment
from dpjax.train.folder import RunFolder
from dpjax.train.identity import RunIdentity
from dpjax.train.keys import member_key, root_key
from dpjax.train.parameters import read_weights
from dpjax.train.program import Program, TrainState

__all__ = ["Member", "begin", "changes", "check_successor", "common_steps", "go_on", "take_over"]


@dataclass(frozen=True)
class Member:
    """One run: its program, its books and the state it is in.

    Attributes:
        program: what runs.
        book: what it released.
        state: where it is.
        notes: sentences for the user, such as checkpoints that were refused.
    """

    program: Program
    book: Book
    state: TrainState
    notes: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> Checkpoints:
        """The run's checkpoints."""
        return _checkpoints(self.book.folder, self.book.identity)

    def save(self) -> None:
        """Writes a checkpoint."""
        self.checkpoints.save(int(self.state.step), self.state, self.book.meta())


def begin(
    program: Program,
    folder: RunFolder,
    data: Mapping[str, str],
    root: jax.Array,
    member: int = 0,
    members: int = 1,
) -> Member:
    """Begins a run in a folder that was created for it: its state is on disk before any step.

    Args:
        program: what runs.
        folder: where.
        data: the marks of the examples.
        root: the root key; each member's is folded from it.
        member: which of several runs.
        members: how many are begun together.
    """
    experiment = program.plan.experiment
    identity = RunIdentity(experiment.identity, member, members, program.varied)
    folder.write_config(experiment)
    key = member_key(root, identity.lineage, member)
    file = experiment.model.weights
    state = jax.jit(program.init)(key, None if file is None else read_weights(file))
    book = Book(folder, program.plan, identity, data, program.plan.ledger())
    begun = Member(program, book, state)
    begun.save()
    folder.commit(identity)
    return begun


def go_on(
    program: Program, folder: RunFolder, data: Mapping[str, str], step: int | None = None
) -> Member:
    """Returns a run as its newest sound checkpoint has it, or that of a given step.

    Args:
        program: what runs.
        folder: where.
        data: the marks of the examples, which must be those that the run was begun with.
        step: the checkpoint; None for the newest.
    """
    identity = folder.identity()
    like = jax.eval_shape(program.init, root_key(0))
    restored = _checkpoints(folder, identity).restore(like, step)
    if restored is None:
        raise ValueError(f"{folder.path}: no checkpoint is left; expected one to go on from")
    _check_same_experiment(program, folder, restored)
    book = Book.from_meta(folder, program.plan, identity, data, restored.meta)
    return Member(replace(program, plan=book.plan), book, restored.state, restored.refused)


def take_over(program: Program, old: Member) -> Member:
    """Goes on with a run as another experiment: with keys of its own, entered in the ledger.

    Everything before stays in the ledger, and counts towards the new budget. What cannot be is
    refused by `check_successor`.
    """
    step = int(old.state.step)
    book = old.book.taken_over(program.plan, step)
    key = member_key(old.state.key, book.identity.lineage, book.identity.member)
    taken = Member(
        replace(program, plan=book.plan), book, _rekeyed(program, old.state, key), old.notes
    )
    taken.save()
    book.folder.change(book.identity, program.plan.experiment)
    shutil.rmtree(book.folder.checkpoints(old.book.identity.lineage), ignore_errors=True)
    return taken


def common_steps(folders: Sequence[RunFolder]) -> list[int]:
    """Returns the steps at which every one of several runs has a checkpoint, newest first."""
    found = [set(_checkpoints(folder, folder.identity()).steps()) for folder in folders]
    return sorted(set.intersection(*found), reverse=True)


def _checkpoints(folder: RunFolder, identity: RunIdentity) -> Checkpoints:
    return Checkpoints(folder.checkpoints(identity.lineage), identity.mark)


def _check_same_experiment(program: Program, folder: RunFolder, restored: Restored) -> None:
    stored = Experiment.from_plain(restored.meta["experiment"])
    if stored.identity != program.plan.experiment.identity:
        raise ValueError(
            f"{folder.path}: {changes(stored, program.plan.experiment)}: expected the experiment "
            "that the checkpoint was made with; rekey=True resumes with the change, with keys of "
            "its own and an entry in the ledger"
        )


def changes(old: Experiment, new: Experiment) -> str:
    """Says which values differ between two experiments, apart from `run`."""
    differing = []
    before, after = old.to_plain(), new.to_plain()
    for section in before:
        if section == "run" or before[section] == after[section]:
            continue
        for key in sorted(before[section].keys() | after[section].keys()):
            pair = (before[section].get(key), after[section].get(key))
            if pair[0] != pair[1]:
                differing.append(f"{section}.{key} was {pair[0]!r} and is {pair[1]!r}")
    return "; ".join(differing)


def check_successor(program: Program, old: Member) -> None:
    """Refuses an experiment that a run cannot become, and changes nothing."""
    old.book.taken_over(program.plan, int(old.state.step))
    new = jax.eval_shape(program.init, old.state.key)
    why = leaves.difference(leaves.describe(old.state), leaves.describe(new))
    if why is not None:
        changed = changes(old.book.plan.experiment, program.plan.experiment)
        raise ValueError(
            f"{old.book.folder.path}: {changed}: expected a change that keeps the parameters and "
            f"the state of the optimizer, but {why}"
        )


def _rekeyed(program: Program, state: TrainState, key: jax.Array) -> TrainState:
    """Returns the state with all keys replaced by those of a new run with this key."""
    fresh = jax.jit(program.init)(key)
    is_noise = lambda node: isinstance(node, PrivatizeState)  # noqa: E731
    opt_state = jax.tree.map(
        lambda old, new: old._replace(key=new.key) if is_noise(old) else old,
        state.opt_state,
        fresh.opt_state,
        is_leaf=is_noise,
    )
    return state._replace(opt_state=opt_state, key=key, vary=fresh.vary)
