"""Runs on all cores: one process per core, and one run after another in each process."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

from dpjax.data import Dataset
from dpjax.models.nfnet_weights import read_nfnet
from dpjax.papers.recipe import SeededRun
from dpjax.papers.store import CurvePoint, RunRecord, Store, recorded
from dpjax.train import Experiment, load_dataset, train
from dpjax.train.folder import environment

__all__ = ["NFNETS", "nfnet_path", "pretrained_path", "run_all"]

NFNETS = ("nfnet_f0", "nfnet_f1")
"""The networks whose published weights are one file, not a Hugging Face directory."""

_BYTES_PER_RUN = 2 * 2**30  # a small network with its data and its compiled program
_loaded: dict[str, Dataset] = {}


def run_all(
    runs: Sequence[SeededRun],
    store: Store,
    data_dir: str | None = None,
    workers: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    pretrained: str | None = None,
) -> None:
    """Trains the runs that the store does not have; resumes interrupted ones.

    Args:
        runs: the runs, most important first.
        store: where the results are written.
        data_dir: the folder of the data sets, as for `dpjax.data.load`.
        workers: the number of parallel runs; None for one per core, as far as memory allows.
        say: called with a line for each run that ends.
        pretrained: the folder of pre-trained networks, as for `pretrained_path` and `nfnet_path`.

    Example:
        >>> from dpjax.papers import cell_named, recipe_of
        >>> recipe = recipe_of(cell_named("psasc/III/mnist/4-layer-cnn/3/dp-psac"))
        >>> run_all(recipe.results({}), Store(Path("runs")), say=print)  # doctest: +SKIP
    """
    different = {run.key: run for run in runs}
    todo = [run for key, run in different.items() if key not in store.records]
    if not todo:
        return
    count = min(workers or _workers(), len(todo))
    context = multiprocessing.get_context("spawn")  # a forked JAX hangs
    cores = context.Queue()
    for core in range(count):
        cores.put(core)
    begun = time.monotonic()
    with ProcessPoolExecutor(count, context, _take_core, (cores, count)) as pool:
        waiting = {
            pool.submit(_trained, run, store.path, data_dir, pretrained): run for run in todo
        }
        try:
            _collect(waiting, store, begun, say)
        except BaseException:
            # Do not wait for running trainings: they resume from their last checkpoint next time.
            for child in multiprocessing.active_children():
                child.kill()  # on SIGTERM it would save first, and then start the next run
            raise


def _collect(
    waiting: dict["Future[tuple[RunRecord, list[CurvePoint]]]", SeededRun],
    store: Store,
    begun: float,
    say: Callable[[str], None],
) -> None:
    total, failed = len(waiting), []
    pending = set(waiting)
    while pending:
        ended, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in ended:
            run = waiting[future]
            error = future.exception()
            if error is not None:
                failed.append(f"{run.key}: {error}")
                say(f"{run.experiment.method['name']}, seed {run.seed}: {error}")
                continue
            record, points = future.result()
            store.add(run, record, points)
            store.discard_work(run)
            done = total - len(pending) - len(failed)
            left = (time.monotonic() - begun) / max(done, 1) * len(pending) / 60
            say(
                f"{done}/{total}  {record.data} {record.method} seed {record.seed}: "
                f"{record.accuracy:.2%} in {record.seconds:.0f} s; about {left:.0f} min left"
            )
    if failed:
        raise ValueError(f"{len(failed)} of {total} runs failed; the first: {failed[0]}")


def pretrained_path(name: str, directory: str) -> Path | None:
    """Returns the directory of a pre-trained network: a subfolder with its name, or `directory`.

    Args:
        name: its published name, such as "roberta-base".
        directory: the network's own directory, or a folder of several networks by name.

    Returns:
        The directory; None if there is none.
    """
    for path in (Path(directory) / name, Path(directory)):
        if (path / "config.json").is_file():
            return path
    return None


def nfnet_path(model: str, directory: str) -> Path | None:
    """Returns the file of a published NFNet's weights, by timm's or DeepMind's name for it.

    Args:
        model: "nfnet_f0" or "nfnet_f1".
        directory: the folder of the file.

    Returns:
        The file, for `dpjax.models.nfnet_weights.read_nfnet`; None if there is none.
    """
    variant = model.rpartition("_")[2].upper()
    names = (f"dm_{model}/model.safetensors", f"dm_{model}.safetensors", f"{variant}_haiku.npz")
    return next((path for name in names if (path := Path(directory) / name).is_file()), None)


def _with_published(experiment: Experiment, directory: str, store: Store) -> Experiment:
    """Returns an experiment that starts from a directory's published weights, if it has any."""
    model = experiment.model
    if model.pretrained is not None:
        here = pretrained_path(model.pretrained, directory) or model.pretrained
        return experiment.set("model.pretrained", str(here))
    file = nfnet_path(model.name, directory) if model.name in NFNETS else None
    if file is None:
        return experiment
    converted = store.path / "work" / f"{model.name}.npz"
    if not converted.exists():
        converted.parent.mkdir(parents=True, exist_ok=True)
        partial = converted.with_name(f"{model.name}-{os.getpid()}.npz")
        arrays: dict[str, Any] = dict(read_nfnet(file))
        np.savez(partial, **arrays)
        partial.replace(converted)  # atomic, since another worker may be converting it too
    return experiment.set("model.weights", str(converted))


def _workers() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // _BYTES_PER_RUN))


def _take_core(cores: "multiprocessing.Queue[int]", count: int) -> None:
    """Pins this process to a core: two runs in parallel are faster than one on both cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this one
    core = cores.get()
    if count > 1:
        own = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {own[core % len(own)]})


def _trained(
    run: SeededRun, path: Path, data_dir: str | None, pretrained: str | None = None
) -> tuple[RunRecord, list[CurvePoint]]:
    experiment, store = run.seeded, Store(path)
    if pretrained is not None:
        experiment = _with_published(experiment, pretrained, store)
    name = f"{experiment.data} {experiment.model.pretrained}"
    if name not in _loaded:
        _loaded.clear()  # one data set at a time
        _loaded[name] = load_dataset(experiment, data_dir)
    folder = store.work(run)
    if folder.exists and folder.identity().environment != environment():
        store.discard_work(run)  # started under other versions, so it cannot be resumed
    begun = time.monotonic()
    result = train(experiment, _loaded[name], folder.path, resume=folder.exists)[0]
    return recorded(run, result.folder, time.monotonic() - begun)
