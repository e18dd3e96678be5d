"""Audits of a whole training: one run with many canaries, seen from inside and from outside.

A canary is an example whose gradient points where no other example's does.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from dpjax import _checks
from dpjax.audit.bounds import bound_of_one_run, check_confidence
from dpjax.audit.claims import Finding, PrintedEpsilon, claim_of, with_noise_times
from dpjax.audit.subjects import Subject
from dpjax.data import Dataset, Split
from dpjax.models.parameters import Params
from dpjax.train import Experiment, Plan, Result, resolve, train

__all__ = ["Planted", "TrainingAudit", "audit_training", "plant"]

_LOUD = 300.0  # a canary's own feature; its gradient exceeds any threshold until it is learned


class Planted(NamedTuple):
    """A data set with some of the canaries in it.

    Attributes:
        dataset: the data set, with one more feature for each canary.
        x: the inputs of all canaries, including those left out.
        y: their labels.
        included: which canaries are among the training examples.
    """

    dataset: Dataset
    x: np.ndarray
    y: np.ndarray
    included: np.ndarray


def plant(dataset: Dataset, count: int, rng: np.random.Generator) -> Planted:
    """Returns a data set with canaries, each included by its own fair coin.

    A canary has one feature, which no other example has, and a random label. In a linear model, the
    gradients of two canaries overlap only in the bias.

    Args:
        dataset: the examples among which they hide.
        count: the number of canaries.
        rng: draws coins and labels, which belong to the attack and not to the training.

    Example:
        >>> x, y = np.ones((5, 2, 2, 1), np.uint8), np.zeros(5, np.int32)
        >>> small = Dataset("small", Split(x, y), Split(x, y), classes=3)
        >>> planted = plant(small, 4, np.random.default_rng(0))
        >>> planted.dataset.train.x.shape == (5 + planted.included.sum(), 4 + 4)
        True
    """
    included = rng.random(count) < 0.5
    labels = rng.integers(dataset.classes, size=count).astype(np.int32)
    width = int(np.prod(dataset.shape))
    canaries = np.zeros((count, width + count), np.float32)
    canaries[:, width:] = _LOUD * np.eye(count, dtype=np.float32)
    train, test = (_widened(split, count) for split in (dataset.examples, dataset.test))
    order = rng.permutation(len(train.y) + included.sum())
    whole = Split(
        np.concatenate([train.x, canaries[included]])[order],
        np.concatenate([train.y, labels[included]])[order],
    )
    found = Dataset(f"{dataset.name} with canaries", whole, test, dataset.classes)
    return Planted(found, canaries, labels, included)


def _widened(split: Split, count: int) -> Split:
    """Returns a split as flat features of at most 1, with an empty feature for each canary."""
    flat = split.x.reshape(len(split.x), -1).astype(np.float32)
    largest = np.max(np.abs(flat), initial=1.0)
    empty = np.zeros((len(flat), count), np.float32)
    return Split(np.concatenate([flat / largest, empty], axis=1), split.y)


@dataclass(frozen=True)
class TrainingAudit:
    """The size of the training, and the confidence and delta of the bound.

    Args:
        examples: how many examples of the data set the canaries hide among.
        epsilon: what the training claims; a method without a guarantee uses sigma_0 = 1 instead.
        epochs: how long it trains.
        delta: the delta of claim and bound.
        confidence: the probability with which the bound holds.

    Example:
        >>> TrainingAudit(examples=500).epsilon
        8.0
    """

    examples: int = 1000
    epsilon: float = 8.0
    epochs: float = 10.0
    delta: float = 1e-6
    confidence: float = 0.99

    def __post_init__(self) -> None:
        """Checks the fields."""
        _checks.integer("examples", self.examples, at_least=1)
        _checks.positive("epsilon", self.epsilon)
        _checks.positive("epochs", self.epochs)
        check_confidence(self.confidence)
        _checks.fraction("delta", self.delta)


def audit_training(
    name: str,
    subject: Subject,
    dataset: Dataset,
    seed: int,
    audit: TrainingAudit = TrainingAudit(),
    noise: float = 1.0,
    printed: PrintedEpsilon | None = None,
) -> tuple[Finding, Finding]:
    """Trains once with canaries and returns two lower bounds on the epsilon of that run.

    "one run" sees the first and the last parameters. Its score is the movement along a canary's
    first gradient, ``<w_0 - w_T, g_i(w_0)> / |g_i(w_0)|``; under SGD, w_0 - w_T is the sum of all
    released gradients. "final model" can only evaluate the last model; its score is minus the
    canary's loss.

    Args:
        name: a name in `dpjax.methods`.
        subject: its arguments.
        dataset: the data set among whose examples the canaries hide.
        seed: the seed of the canaries and of the training.
        audit: the size of the training.
        noise: a factor on the noise that the claim does not know about.
        printed: the claim for a method without a guarantee.

    Returns:
        The findings of "one run" and of "final model".

    Reference: Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, 2023,
    https://arxiv.org/abs/2305.08846
    """
    rng = np.random.default_rng(seed)
    rows = rng.permutation(dataset.size)[: audit.examples]
    part = replace(dataset, train=Split(*(a[rows] for a in dataset.examples)))
    planted = plant(part, subject.canaries, rng)
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start.npz"
        _write_zeros(start, planted)
        experiment = _experiment(name, subject, planted, audit)
        experiment = experiment.set("run.seed", seed).set("model.weights", str(start))
        plan = resolve(experiment, planted.dataset.size)
        result = _trained(plan, planted.dataset, noise, Path(folder) / "run")
    rate = plan.batch_size / plan.dataset_size
    claims = partial(claim_of, plan.method, rate, plan.steps, printed=printed)
    claim = claims(plan.delta)
    if noise == 1 and result.epsilon is not None:
        claim = claim._replace(epsilon=result.epsilon)  # what the run itself says it spent
    movement, losses = _scores(result.state.params, planted)
    one_run, final = (
        Finding(
            name,
            attack,
            f"{len(planted.y)} canaries among {audit.examples} examples",
            claim.epsilon,
            claim.source,
            bound_of_one_run(*parts, audit.confidence, audit.delta),
            audit.confidence,
            audit.delta,
            len(planted.y),
            *parts,
            lambda delta: claims(delta).epsilon,
        )
        for attack, scores in (("one run", movement), ("final model", -losses))
        for parts in [(scores[planted.included], scores[~planted.included])]
    )
    return one_run, final


def _experiment(name: str, subject: Subject, planted: Planted, audit: TrainingAudit) -> Experiment:
    """Returns SGD on a linear model, with the noise of the claim."""
    sampled = {"batch_size": subject.batch_size} if subject.sampling != "full" else {}
    plain = {
        "data": {"name": planted.dataset.name},
        "model": {"name": "linear"},
        "method": {"name": name, **subject.arguments},
        "optimizer": {"name": "sgd", "learning_rate": 1e-4},
        "train": {"epochs": audit.epochs, "sampling": subject.sampling, **sampled},
        "privacy": {"delta": audit.delta},
    }
    if subject.printed:
        plain["method"]["noise_multiplier"] = 1.0
    else:
        plain["privacy"]["epsilon"] = audit.epsilon
    return Experiment.from_plain(plain)


def _trained(plan: Plan, dataset: Dataset, noise: float, folder: Path) -> Result:
    method = with_noise_times(plan.method, noise).to_plain()
    experiment = replace(
        plan.experiment, method=method, privacy=replace(plan.experiment.privacy, epsilon=None)
    )
    return train(experiment, dataset, folder)[0]


def _scores(last: Params, planted: Planted) -> tuple[np.ndarray, np.ndarray]:
    """Returns the movement along each canary's first gradient, and its last loss."""
    dense = last["dense"]
    kernel, bias = (np.asarray(dense[part], np.float64) for part in ("kernel", "bias"))
    logits = planted.x @ kernel + bias
    rows = np.arange(len(planted.y))
    losses = logsumexp(logits, axis=1) - logits[rows, planted.y]
    # The parameters start at zero, so all classes are equally likely, and the gradient is the outer
    # product of the input and the error.
    residual = np.full(logits.shape, 1 / planted.dataset.classes)
    residual[rows, planted.y] -= 1
    movement = -np.sum((planted.x @ kernel) * residual, axis=1)
    return movement, losses


def _write_zeros(file: Path, planted: Planted) -> None:
    """Writes the initial parameters of the training, which the attack therefore knows."""
    classes = planted.dataset.classes
    shapes = {"dense/kernel": (*planted.dataset.shape, classes), "dense/bias": (classes,)}
    zeros: dict[str, Any] = {path: np.zeros(shape) for path, shape in shapes.items()}
    np.savez(file, **zeros)
