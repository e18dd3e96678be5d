"""Training as a person asks for it: an experiment and a folder in, results out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax.data import Dataset, fingerprints
from dpjax.train import mesh
from dpjax.train.checkpoint import CheckpointError
from dpjax.train.config import Experiment, RunConfig
from dpjax.train.diagnostics import PROBED, Probe
from dpjax.train.feed import Examples, examples_of, gathered
from dpjax.train.folder import RunFolder
from dpjax.train.identity import differences, environment, root_key
from dpjax.train.loop import Result, drive
from dpjax.train.mesh import Layout, device_memory
from dpjax.train.network import starting_weights, with_frozen_states
from dpjax.train.progress import Evaluation, Progress, TensorBoard
from dpjax.train.run import Run, common_steps
from dpjax.train.runner import DeviceRunner, Runner, build_runner, stacked
from dpjax.train.step import VARIABLE, Program, build_program

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
    callback: Callable[[Sequence[Evaluation]], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Trains an experiment: one run, or one for each seed and each combination of varied numbers.

    Args:
        experiment: what to train.
        dataset: its data.
        folder: where the run goes; several go into folders of their own inside it.
        vary: numbers of `dpjax.train.step.VARIABLE` with the values that members take.
        resume: resume what is in the folder. Of several runs that are begun together, those
            that a kill kept from being begun are begun.
        rekey: resume also if the experiment has changed, or what draws the bits, with new keys.
        progress: makes what is told how each run goes.
        callback: called after every evaluation with its released numbers, a table for each run
            that goes side by side; never with anything private.
        say: is told what a person should know.

    Returns:
        A result for each run.

    Raises:
        ValueError: naming the field or the folder: an experiment that cannot run; a folder that
            holds a run, without `resume`, or none, with it; a run of another experiment, begun
            in another environment, or on other data.
        Preempted: the process was sent SIGTERM. The run was saved first.
        LostProcessError: there were several processes, and another one has ended.
    """
    varied = dict(vary or {})
    dataset = with_frozen_states(experiment, dataset)
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
    layout = Layout.of(experiment.run)
    if not all(known):
        _rehearse(members[0][0], dataset, experiment.run)
    with mesh.others_alive(), ExitStack() as locks:
        mesh.wait_for_all("all have looked at the folder")
        if mesh.is_primary():
            for place, begun in zip(folders, known, strict=True):
                if not begun:
                    place.create()
                locks.enter_context(place.locked())
        mesh.wait_for_all("the folder is made")
        entered = _entered(members, folders, known, dataset, rekey, layout)
        notes = [note for run in entered for note in run.notes]
        for note in dict.fromkeys([*notes, *_of_the_seed(experiment)]):
            if mesh.is_primary():
                say(note)
        return [
            result
            for group, runner in _groups(entered, dataset, experiment.run, say)
            for result in _driven(group, runner, dataset, experiment.run, progress, callback)
        ]


def _entered(
    members: Sequence[tuple[Program, int]],
    folders: Sequence[RunFolder],
    known: Sequence[bool],
    dataset: Dataset,
    rekey: bool,
    layout: Layout,
) -> list[Run]:
    """Returns all runs: those that were begun as they are on disk, and the others new."""
    marks = fingerprints(dataset)
    root = _shared_root(members[0][0].plan.experiment)
    begun = [
        (program, place)
        for (program, _), place, is_known in zip(members, folders, known, strict=True)
        if is_known
    ]
    resumed = iter(_resumed(begun, dataset, marks, rekey, layout))
    return [
        next(resumed)
        if is_known
        else Run.begin(program, place, marks, root, seed, len(members), layout)
        for (program, seed), place, is_known in zip(members, folders, known, strict=True)
    ]


def _shared_root(experiment: Experiment) -> jax.Array:
    """Returns the root key that all processes share; refuses one with another experiment."""
    root = root_key(experiment.run.seed)
    if jax.process_count() == 1:
        return root
    own = np.frombuffer(bytes.fromhex(experiment.identity), np.uint32)
    if not np.array_equal(own, mesh.agreed(own)):
        raise ValueError(
            f"process {jax.process_index()} was given another experiment than process 0: expected "
            "the same command on every process"
        )
    words = mesh.agreed(np.asarray(jax.random.key_data(root)))
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def _rehearse(program: Program, dataset: Dataset, run: RunConfig) -> None:
    """Traces a step and takes none: what is wrong with it is found before there is a folder."""
    weights = starting_weights(program.plan.experiment, program.network)
    state = jax.eval_shape(program.init, root_key(0), weights)
    train = examples_of(dataset.train)
    if isinstance(train, Examples):
        jax.eval_shape(program.step, state, train)
    layout = Layout.of(run)
    if layout.mesh is not None:
        layout.shardings(state)
        build_runner(program, dataset, run)


def _groups(
    runs: Sequence[Run], dataset: Dataset, config: RunConfig, say: Callable[[str], None]
) -> Iterator[tuple[Sequence[Run], Runner]]:
    """Yields the runs that go in step with each other, and where they run."""
    if len(runs) > 1 and _in_step(runs):
        runner = build_runner(runs[0].program, dataset, config, len(runs))
        if isinstance(runner, DeviceRunner):
            needed = runner.temporary_bytes(stacked([run.state for run in runs]))
            if needed <= device_memory() / 2:
                yield runs, runner
                return
            say(f"{len(runs)} runs together need {needed / 2**30:.1f} GiB: one after another")
    for run in runs:
        yield [run], build_runner(run.program, dataset, config)


def _in_step(runs: Sequence[Run]) -> bool:
    """Says whether runs have the same steps before and after them, and so the same costs."""
    first = runs[0]
    return all(
        int(run.state.step) == int(first.state.step)
        and run.plan.steps == first.plan.steps
        and (run.before, run.start) == (first.before, first.start)
        for run in runs
    )


def _driven(
    runs: Sequence[Run],
    runner: Runner,
    dataset: Dataset,
    config: RunConfig,
    progress: Callable[[str], Progress],
    callback: Callable[[Sequence[Evaluation]], None] | None,
) -> list[Result]:
    program = runs[0].program
    probe = None
    if config.diagnostics:
        some = np.arange(min(PROBED, dataset.size))
        probe = Probe(program, gathered(examples_of(dataset.train), some))
    watching: list[Progress] = []
    if mesh.is_primary():
        watching = [progress(program.plan.name)]
        watching += [Progress(callback)] if callback is not None else []
        watching += [TensorBoard(runs[0].folder.path / "tensorboard")] if config.tensorboard else []
    return drive(runs, runner, config, watching, probe)


def _resumed(
    runs: Sequence[tuple[Program, RunFolder]],
    dataset: Dataset,
    marks: Mapping[str, str],
    rekey: bool,
    layout: Layout,
) -> list[Run]:
    """Resumes runs that were begun; all of them are checked before any is changed.

    Of several, each resumes from the newest step at which all have a sound checkpoint, if there is
    one, and otherwise from its own newest one.
    """
    steps: list[int | None] = [None]
    if len(runs) > 1:
        steps = [*common_steps([folder for _, folder in runs]), None]
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
    layout: Layout,
) -> Run:
    """Returns a run as its checkpoint has it; refuses another experiment unless it may change."""
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
            _check_environment(run)
        return run
    old = Run.resume(build_program(stored, dataset, program.varied), folder, marks, step, layout)
    old.check_successor(program)
    return old


def _changed(program: Program, old: Run) -> Run:
    """Gives a run new keys if it resumes as another experiment, or in another environment."""
    if mesh.is_primary():
        old.folder.settle()
    asked = program.plan.experiment.identity
    same = old.plan.experiment.identity == asked and not _moved(old)
    run = old if same else old.rekey(replace(program, varied=old.program.varied))
    if mesh.is_primary():
        run.folder.cut(int(old.state.step))
    return run


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


def _moved(run: Run) -> str:
    """Says what draws other bits than before, if the run has steps left to draw them for."""
    if int(run.state.step) >= run.plan.steps:
        return ""
    return differences(run.identity.environment, environment())


def _check_environment(run: Run) -> None:
    if not (moved := _moved(run)):
        return
    how = "; rekey=True resumes with keys of its own and an entry in the ledger"
    raise ValueError(
        f"{run.folder.path}: {moved}: expected what the run was begun with, which draws "
        f"the same noise for a step that is repeated{how if run.plan.private else ''}"
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
