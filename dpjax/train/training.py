"""`train`: takes an experiment and a folder, returns results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _checks
from dpjax.data import Dataset, Split, fingerprints
from dpjax.train import mesh
from dpjax.train.config import Experiment, RunConfig
from dpjax.train.diagnostics import PROBED, Probe
from dpjax.train.feed import DeviceRunner, Runner, build_runner, examples_of, gathered, stacked
from dpjax.train.folder import RunFolder, root_key
from dpjax.train.loop import Loop, Result
from dpjax.train.mesh import Layout, device_memory
from dpjax.train.network import starting_weights, with_frozen_states
from dpjax.train.progress import Evaluation, Progress, TensorBoard
from dpjax.train.run import Run, resume_all
from dpjax.train.step import VARIABLE, Examples, Program, build_program

__all__ = ["train"]

_SEEDED = (
    "seed {}: the noise is reproducible, so whoever knows the seed can take it away; do not "
    "publish this run"
)


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
        dataset: its data set.
        folder: the run's folder; several runs get subfolders in it.
        vary: the values that members take, for numbers in `dpjax.train.step.VARIABLE`.
        resume: resume what is in the folder. If several runs were to be begun together and a kill
            came in between, the missing ones are begun now.
        rekey: with `resume`, also resume if the experiment or environment has changed, with new
            keys.
        progress: called with the method's name; returns the progress display of a run, or of the
            runs trained side by side.
        callback: called after every evaluation with its released numbers, one table for each of
            the runs trained side by side; never with anything private.
        say: called with messages for the user.

    Returns:
        One result for each run.

    Raises:
        ValueError: naming the field or the folder: if the experiment cannot run; if the folder
            holds a run and `resume` is False, or holds none and it is True; if the run is from
            another experiment, another environment or other data.
        Preempted: if the process receives SIGTERM; the run is saved first.
        LostProcessError: if there are several processes, and another one has ended.

    Example:
        >>> from dpjax.train import load_dataset
        >>> experiment = Experiment().set("privacy.epsilon", 2.0)
        >>> dataset = load_dataset(experiment)
        >>> result = train(experiment, dataset, Path("run"))[0]  # doctest: +SKIP
        >>> result.epsilon <= 2.0, result.accuracy > 0.5  # doctest: +SKIP
        (True, True)
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
        notes = dict.fromkeys(note for run in entered for note in run.notes)
        if experiment.run.seed is not None:
            notes[_SEEDED.format(experiment.run.seed)] = None
        if mesh.is_primary():
            for note in notes:
                say(note)
        results = []
        for runs, runner in _groups(entered, dataset, experiment.run, say):
            watching = _watching(runs, progress, callback) if mesh.is_primary() else []
            results += Loop(runs, runner, watching, _probe(runs, dataset)).to_the_end()
        return results


def _entered(
    members: Sequence[tuple[Program, int]],
    folders: Sequence[RunFolder],
    known: Sequence[bool],
    dataset: Dataset,
    rekey: bool,
    layout: Layout,
) -> list[Run]:
    """Returns all runs: those on disk are restored, and the others are begun."""
    marks = fingerprints(dataset)
    root = _shared_root(members[0][0].plan.experiment)
    begun = [
        (program, place)
        for (program, _), place, is_known in zip(members, folders, known, strict=True)
        if is_known
    ]
    resumed = iter(resume_all(begun, dataset, marks, rekey, layout))
    return [
        next(resumed)
        if is_known
        else Run.begin(program, place, marks, root, seed, len(members), layout)
        for (program, seed), place, is_known in zip(members, folders, known, strict=True)
    ]


def _shared_root(experiment: Experiment) -> jax.Array:
    """Returns the root key that all processes share; raises if their experiments differ."""
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
    """Traces a step without running it, to find errors before a folder is created."""
    weights = starting_weights(program.plan.experiment, program.network)
    state = jax.eval_shape(program.init, root_key(0), weights)
    if isinstance(dataset.train, Split):
        jax.eval_shape(program.step, state, examples_of(dataset.train))
    layout = Layout.of(run)
    if layout.mesh is not None:
        layout.shardings(state)
        build_runner(program, dataset, run)


def _groups(
    runs: Sequence[Run], dataset: Dataset, config: RunConfig, say: Callable[[str], None]
) -> Iterator[tuple[Sequence[Run], Runner]]:
    """Yields the runs that advance in lockstep, each group with its runner."""
    first = runs[0]
    in_step = all(
        int(run.state.step) == int(first.state.step)
        and (run.plan.steps, run.before, run.start) == (first.plan.steps, first.before, first.start)
        for run in runs
    )
    if len(runs) > 1 and in_step:
        runner = build_runner(first.program, dataset, config, len(runs))
        if isinstance(runner, DeviceRunner):
            needed = runner.temporary_bytes(stacked([run.state for run in runs]))
            if needed <= device_memory() / 2:
                yield runs, runner
                return
            say(f"{len(runs)} runs together need {needed / 2**30:.1f} GiB: one after another")
    for run in runs:
        yield [run], build_runner(run.program, dataset, config)


def _watching(
    runs: Sequence[Run],
    progress: Callable[[str], Progress],
    callback: Callable[[Sequence[Evaluation]], None] | None,
) -> list[Progress]:
    watching = [progress(runs[0].plan.name)]
    if callback is not None:
        watching.append(Progress(callback))
    if runs[0].plan.experiment.run.tensorboard:
        watching.append(TensorBoard(runs[0].folder.path / "tensorboard"))
    return watching


def _probe(runs: Sequence[Run], dataset: Dataset) -> Probe | None:
    if not runs[0].plan.experiment.run.diagnostics:
        return None
    some = np.arange(min(PROBED, dataset.size), dtype=np.int32)
    rows = gathered(dataset.train, some)
    return Probe(runs[0].program, Examples(rows.x, rows.y, some))


def _check_begun(folder: Path, places: Sequence[RunFolder]) -> None:
    """Raises if there is no run to resume, or if other runs were begun together."""
    begun = [place for place in places if place.exists]
    if not begun:
        raise ValueError(f"{folder} holds no run: expected one to resume")
    together = begun[0].identity().members
    if len(places) > 1 and together != len(places):
        raise ValueError(
            f"{folder} holds {together} runs that were begun together: expected as many, not "
            f"{len(places)}"
        )


def _varied(experiment: Experiment, vary: Mapping[str, Sequence[float]]) -> list[Experiment]:
    """Returns the experiment with every combination of varied values."""
    found = [experiment]
    for path, values in vary.items():
        if path not in VARIABLE:
            raise ValueError(f"vary {path}: {_checks.nearest(path, VARIABLE)}")
        found = [each.set(path, value) for each in found for value in values]
    return found


def _folders(
    folder: Path, members: Sequence[tuple[Program, int]], vary: Mapping[str, Sequence[float]]
) -> list[RunFolder]:
    """Returns a folder for each run: the given one, or subfolders of it for several runs."""
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
