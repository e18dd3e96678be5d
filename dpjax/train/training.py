"""Training as a person asks for it: an experiment and a folder in, results out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax

from dpjax import _checks
from dpjax.data import Dataset
from dpjax.train.config import Experiment
from dpjax.train.diagnostics import Probe
from dpjax.train.driver import Result, drive, stacked
from dpjax.train.folder import RunFolder
from dpjax.train.keys import root_key
from dpjax.train.launch import Member, begin, changes, go_on, restored_steps, take_over
from dpjax.train.parameters import read_weights
from dpjax.train.program import VARIABLE, Program
from dpjax.train.progress import Progress
from dpjax.train.runners import DeviceRunner, Runner, device_memory
from dpjax.train.sections import RunConfig
from dpjax.train.setup import build_program, build_runner
from dpjax.train.task import examples_of

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
        resume: go on with what is in the folder; begin what is not.
        rekey: go on also if the experiment has changed, with keys of its own.
        progress: makes what is told how each run goes.
        say: is told what a person should know.

    Returns:
        A result for each run.
    """
    varied = dict(vary or {})
    members = [
        (build_program(each, dataset, tuple(varied)), seed)
        for each in _varied(experiment, varied)
        for seed in range(experiment.run.seeds)
    ]
    folders = _folders(folder, members, varied)
    if len(members) > 1 and RunFolder(folder).exists:
        raise ValueError(f"{folder} holds one run: expected another --out for {len(members)}")
    root = root_key(experiment.run.seed)
    resumed = [resume and each.exists for each in folders]
    if not all(resumed):
        _rehearse(members[0][0], dataset, experiment.run)
    step = restored_steps(folders) if len(members) > 1 and all(resumed) else None
    entered = [
        _resumed(program, place, dataset, step, rekey)
        if known
        else begin(program, place, root, seed, len(members))
        for (program, seed), place, known in zip(members, folders, resumed, strict=True)
    ]
    notes = [note for member in entered for note in member.notes]
    for note in dict.fromkeys([*notes, *_of_the_seed(experiment)]):
        say(note)
    return [
        result
        for group, runner in _groups(entered, dataset, experiment.run, say)
        for result in _driven(group, runner, dataset, experiment.run, progress)
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
    if len(members) > 1 and len({int(member.state.step) for member in members}) == 1:
        runner = build_runner(members[0].program, dataset, run, len(members))
        states = stacked([member.state for member in members])
        needed = runner.temporary_bytes(states) if isinstance(runner, DeviceRunner) else 0
        if needed <= device_memory() / 2:
            yield members, runner
            return
        say(f"{len(members)} runs together need {needed / 2**30:.1f} GiB: one after another")
    for member in members:
        yield [member], build_runner(member.program, dataset, run)


def _driven(
    members: Sequence[Member],
    runner: Runner,
    dataset: Dataset,
    run: RunConfig,
    progress: Callable[[str], Progress],
) -> list[Result]:
    program = members[0].program
    probe = Probe(program, examples_of(dataset.train)) if run.diagnostics else None
    return drive(members, runner, run, progress(program.plan.method.name), probe)


def _resumed(
    program: Program, folder: RunFolder, dataset: Dataset, step: int | None, rekey: bool
) -> Member:
    stored = folder.read_config()
    folder.settle()
    _check_seed(folder, stored, program.plan.experiment)
    if stored.identity == program.plan.experiment.identity:
        member = go_on(program, folder, step)
        folder.cut(int(member.state.step))
        return member
    if not rekey:
        raise ValueError(
            f"{folder.path}: {changes(stored, program.plan.experiment)}: expected the experiment "
            "as it was; --rekey goes on with the change, with keys of its own and an entry in the "
            "ledger"
        )
    old = go_on(build_program(stored, dataset, program.varied), folder, step)
    folder.cut(int(old.state.step))
    return take_over(program, old)


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
        parts = [f"{path.split('.')[-1]}-{program.own_value(path):g}" for path in vary]
        names.append("-".join([*parts, f"seed-{seed}"]))
    return [RunFolder(folder / name) for name in names]
