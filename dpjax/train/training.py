"""Training as a person asks for it: an experiment and a folder in, results out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jax

from dpjax import _checks
from dpjax.data import Dataset
from dpjax.train.checkpoint import CheckpointError
from dpjax.train.config import Experiment
from dpjax.train.diagnostics import Probe
from dpjax.train.driver import Result, drive, stacked
from dpjax.train.folder import RunFolder
from dpjax.train.identity import Environment
from dpjax.train.keys import root_key
from dpjax.train.launch import (
    Member,
    begin,
    changes,
    check_successor,
    common_steps,
    go_on,
    take_over,
)
from dpjax.train.parameters import read_weights
from dpjax.train.program import VARIABLE, Program
from dpjax.train.progress import Progress
from dpjax.train.runners import MembersRunner, Runner, device_memory
from dpjax.train.sections import RunConfig
from dpjax.train.setup import build_program, build_runner
from dpjax.train.task import data_marks, examples_of

__all__ = ["train"]


def train(
    experiment: Experiment,
    dataset: Dataset,
    folder: Path,
    *,
    vary: Mapping[str, Sequence[float]] | None = None,
    resume: bool = False,
    rekey: bool = False,
    progress: Callable[[str], Progress] = lambda label: Progress(),
    say: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Trains an experiment: one run, or one for each seed and each combination of varied numbers.

    Args:
        experiment: what to train.
        dataset: its data.
        folder: where the run goes; several go into folders of their own inside it.
        vary: numbers of `dpjax.train.program.VARIABLE` with the values that members take.
        resume: go on with what is in the folder. Of several runs that are begun together, those
            that a kill kept from being begun are begun.
        rekey: go on also if the experiment has changed, or what draws the bits, with new keys.
        progress: makes what is told how each run goes.
        say: is told what a person should know.

    Returns:
        A result for each run.

    Raises:
        ValueError: naming the field or the folder: an experiment that cannot run; a folder that
            holds a run, without `resume`, or none, with it; a run of another experiment, begun
            in another environment, or on other data.
    """
    varied = dict(vary or {})
    members = [
        (build_program(each, dataset, tuple(varied)), seed)
        for each in _varied(experiment, varied)
        for seed in range(experiment.run.seeds)
    ]
    folders = _folders(folder, members, varied)
    if len(members) > 1 and RunFolder(folder).exists:
        raise ValueError(f"{folder} holds one run: expected another folder for {len(members)}")
    if resume:
        _check_begun(folder, folders)
    known = [resume and each.exists for each in folders]
    if not all(known):
        _rehearse(members[0][0], dataset, experiment.run)
    with ExitStack() as locks:
        for place, begun in zip(folders, known, strict=True):
            if not begun:
                place.create()
            locks.enter_context(place.locked())
        entered = _entered(members, folders, known, dataset, rekey)
        notes = [note for member in entered for note in member.notes]
        for note in dict.fromkeys([*notes, *_of_the_seed(experiment)]):
            say(note)
        return [
            result
            for group, runner in _groups(entered, dataset, experiment.run, say)
            for result in _driven(group, runner, dataset, experiment.run, progress)
        ]


def _entered(
    members: Sequence[tuple[Program, int]],
    folders: Sequence[RunFolder],
    known: Sequence[bool],
    dataset: Dataset,
    rekey: bool,
) -> list[Member]:
    """Returns all runs: those that were begun as they are on disk, and the others new."""
    marks = data_marks(dataset)
    root = root_key(members[0][0].plan.experiment.run.seed)
    begun = [
        (program, place)
        for (program, _), place, is_known in zip(members, folders, known, strict=True)
        if is_known
    ]
    resumed = iter(_resumed(begun, dataset, marks, rekey))
    return [
        next(resumed) if is_known else begin(program, place, marks, root, seed, len(members))
        for (program, seed), place, is_known in zip(members, folders, known, strict=True)
    ]


def _rehearse(program: Program, dataset: Dataset, run: RunConfig) -> None:
    """Traces a step and takes none: what is wrong with it is found before there is a folder."""
    file = program.plan.experiment.model.weights
    state = jax.eval_shape(program.init, root_key(0), None if file is None else read_weights(file))
    jax.eval_shape(program.step, state, examples_of(dataset.train))
    if run.devices > 1:
        build_runner(program, dataset, run)


def _groups(
    members: Sequence[Member], dataset: Dataset, run: RunConfig, say: Callable[[str], None]
) -> Iterator[tuple[Sequence[Member], Runner]]:
    """Yields the runs that go in step with each other, and where they run."""
    if len(members) > 1 and _in_step(members):
        runner = build_runner(members[0].program, dataset, run, len(members))
        if isinstance(runner, MembersRunner):
            needed = runner.temporary_bytes(stacked([member.state for member in members]))
            if needed <= device_memory() / 2:
                yield members, runner
                return
            say(f"{len(members)} runs together need {needed / 2**30:.1f} GiB: one after another")
    for member in members:
        yield [member], build_runner(member.program, dataset, run)


def _in_step(members: Sequence[Member]) -> bool:
    """Says whether runs have the same steps before and after them, and so the same costs."""
    first = members[0]
    return all(
        int(member.state.step) == int(first.state.step)
        and member.book.plan.steps == first.book.plan.steps
        and (member.book.before, member.book.start) == (first.book.before, first.book.start)
        for member in members
    )


def _driven(
    members: Sequence[Member],
    runner: Runner,
    dataset: Dataset,
    run: RunConfig,
    progress: Callable[[str], Progress],
) -> list[Result]:
    program = members[0].program
    probe = Probe(program, examples_of(dataset.train)) if run.diagnostics else None
    return drive(members, runner, run, progress(program.plan.name), probe)


def _resumed(
    runs: Sequence[tuple[Program, RunFolder]],
    dataset: Dataset,
    marks: Mapping[str, str],
    rekey: bool,
) -> list[Member]:
    """Goes on with runs that were begun; all of them are checked before any is changed.

    Of several, each goes on from the newest step at which all have a sound checkpoint, if there is
    one, and otherwise from its own newest one.
    """
    steps: list[int | None] = [None]
    if len(runs) > 1:
        steps = [*common_steps([folder for _, folder in runs]), None]
    refused: list[str] = []
    for step in steps:
        try:
            old = [
                _as_it_was(program, folder, dataset, marks, step, rekey) for program, folder in runs
            ]
        except CheckpointError as error:
            refused.append(str(error))
            continue
        return [
            replace(_changed(program, member), notes=(*refused, *member.notes))
            for (program, _), member in zip(runs, old, strict=True)
        ]
    raise CheckpointError("; ".join(refused))


def _as_it_was(
    program: Program,
    folder: RunFolder,
    dataset: Dataset,
    marks: Mapping[str, str],
    step: int | None,
    rekey: bool,
) -> Member:
    """Returns a run as its checkpoint has it; refuses another experiment unless it may change."""
    stored = folder.read_config()
    _check_seed(folder, stored, program.plan.experiment)
    varied = folder.identity().varied
    if stored.identity == program.plan.experiment.identity:
        member = go_on(replace(program, varied=varied), folder, marks, step)
        if not rekey:
            _check_environment(member)
        return member
    if not rekey:
        raise ValueError(
            f"{folder.path}: {changes(stored, program.plan.experiment)}: expected the experiment "
            "as it was; rekey=True resumes with the change, with keys of its own and an entry in "
            "the ledger"
        )
    old = go_on(build_program(stored, dataset, varied), folder, marks, step)
    check_successor(replace(program, varied=varied), old)
    return old


def _changed(program: Program, old: Member) -> Member:
    """Gives a run new keys if it goes on as another experiment, or in another environment."""
    folder, step = old.book.folder, int(old.state.step)
    folder.settle()
    asked = program.plan.experiment.identity
    same = old.program.plan.experiment.identity == asked and not _moved(old)
    member = old if same else take_over(replace(program, varied=old.program.varied), old)
    folder.cut(step)
    return member


def _check_begun(folder: Path, places: Sequence[RunFolder]) -> None:
    """Refuses to resume where there is no run, or where others were begun together."""
    begun = [place for place in places if place.exists]
    if not begun:
        raise ValueError(f"{folder} holds no run: expected one to resume")
    together = begun[0].identity().members
    if len(places) > 1 and together != len(places):
        raise ValueError(
            f"{folder} holds {together} runs that were begun together: expected as many, not "
            f"{len(places)}"
        )


def _moved(member: Member) -> str:
    """Says what draws other bits than before, if the run has steps left to draw them for."""
    if int(member.state.step) >= member.book.plan.steps:
        return ""
    return member.book.identity.environment.changes(Environment.current())


def _check_environment(member: Member) -> None:
    if not (moved := _moved(member)):
        return
    how = "; rekey=True resumes with keys of its own and an entry in the ledger"
    raise ValueError(
        f"{member.book.folder.path}: {moved}: expected what the run was begun with, which draws "
        f"the same noise for a step that is repeated{how if member.book.plan.private else ''}"
    )


def _check_seed(folder: RunFolder, stored: Experiment, asked: Experiment) -> None:
    if stored.run.seed != asked.run.seed:
        raise ValueError(
            f"{folder.path}: run.seed = {asked.run.seed}: expected {stored.run.seed}, since a run "
            "goes on with the keys that it has"
        )


def _of_the_seed(experiment: Experiment) -> list[str]:
    """Says what a fixed seed means."""
    if experiment.run.seed is None:
        return []
    return [
        f"seed {experiment.run.seed}: the noise is reproducible, so whoever knows the seed can "
        "take it away; do not publish this run"
    ]


def _varied(experiment: Experiment, vary: Mapping[str, Sequence[float]]) -> list[Experiment]:
    """Returns the experiment for every combination of varied values."""
    found = [experiment]
    for path, values in vary.items():
        if path not in VARIABLE:
            raise ValueError(f"vary {path}: {_checks.nearest(path, VARIABLE)}")
        found = [each.set(path, value) for each in found for value in values]
    return found


def _folders(
    folder: Path, members: Sequence[tuple[Program, int]], vary: Mapping[str, Sequence[float]]
) -> list[RunFolder]:
    """Returns a folder for each run: the one asked for, or one inside it for each of several."""
    if len(members) == 1:
        return [RunFolder(folder)]
    names = []
    for program, seed in members:
        parts = [f"{path.split('.')[-1]}-{program.own_value(path)!r}" for path in vary]
        names.append("-".join([*parts, f"seed-{seed}"]))
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"vary: {name} comes twice: expected different values")
    return [RunFolder(folder / name) for name in names]
