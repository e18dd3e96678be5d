"""Keys come from the operating system, streams never meet, and a fixed seed is said out loud.

Of streams there are two kinds of evidence: the source, where every draw takes a key that was folded
or handed down, and the keys themselves, of which no two are equal.
"""

import ast
import hashlib
import itertools
import os
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

import dpjax
from dpjax import noise
from dpjax.train import train
from dpjax.train.folder import member_key, next_lineage, root_key
from tests.train import small

PACKAGE = Path(dpjax.__file__).parent
ROOT = PACKAGE.parent


def words(key):
    return tuple(int(word) for word in np.asarray(jax.random.key_data(key)).ravel())


def test_without_a_seed_the_key_is_64_bits_of_the_operating_system(monkeypatch):
    asked = []

    def urandom(size):
        asked.append(size)
        return bytes(range(1, size + 1))

    monkeypatch.setattr(os, "urandom", urandom)
    assert words(root_key()) == (0x04030201, 0x08070605)
    assert asked == [8]
    assert words(root_key(7)) == words(jax.random.key(7))  # a seed asks for nothing
    assert asked == [8]


def test_two_keys_differ_in_both_words_and_all_bits_are_used():
    keys = np.array([words(root_key()) for _ in range(64)], np.uint32)
    for column in keys.T:
        assert len(set(column.tolist())) == 64
        # Each bit is set in some keys and not in others; by chance, this fails once in 2^57.
        assert np.bitwise_or.reduce(column) == np.bitwise_or.reduce(~column) == 0xFFFFFFFF


def test_the_generator_and_its_64_bits_are_stated():
    text = " ".join((ROOT / "docs" / "threat-model.md").read_text().split())
    for words_of_it in ("64-bit key", "Threefry", "operating system's entropy", "fixed seed"):
        assert words_of_it in text


@pytest.mark.parametrize("seed", [None, 3])
def test_a_fixed_seed_is_said_when_it_runs_and_in_the_statement(tmp_path, seed):
    said = []
    experiment = small.experiment(train__steps=1)
    if seed is not None:
        experiment = experiment.set("run.seed", seed)
    train(experiment, small.images(), tmp_path / "run", say=said.append)
    statement = (tmp_path / "run" / "statement.md").read_text()
    warned = [line for line in said if "reproducible" in line and "do not publish" in line]
    assert len(warned) == (0 if seed is None else 1)
    assert ("Not to be published" in statement) == (seed is not None)


@cache
def calls():
    """Returns (file, function or None, call) for every call in the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        owner = {}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.Lambda):
                for node in ast.walk(function):
                    owner[node] = function  # the innermost comes last
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                found.append((path.relative_to(PACKAGE).as_posix(), owner.get(node), node))
    return found


def name_of(call):
    return ast.unparse(call.func)


def test_stream_names_are_written_out_and_their_numbers_differ():
    names = set()
    for path, _, call in calls():
        if name_of(call) in ("stream", "noise.stream"):
            literal = call.args[1]
            assert isinstance(literal, ast.Constant), f"{path}: {ast.unparse(call)}"
            names.add(literal.value)
    assert {
        "sampling",
        "init",
        "augment",
        "noise",
        "noise/gradient",
        "noise/statistic",
        "choice",
    } <= names
    first = {name: hashlib.sha256(name.encode()).digest()[:4] for name in names}
    numbers = {name: int.from_bytes(word, "big") for name, word in first.items()}
    assert len(set(numbers.values())) == len(names), numbers
    # Steps and members are folded into keys too: no name has the number of one.
    assert min(numbers.values()) > 2**24, numbers


DRAWS = {
    *("ball", "bernoulli", "beta", "bits", "categorical", "cauchy", "choice", "exponential"),
    *("gamma", "gumbel", "laplace", "multivariate_normal", "normal", "permutation", "poisson"),
    *("rademacher", "randint", "truncated_normal", "uniform"),
}
DERIVED = ("stream", "fold", "fold_in", "split", "params")  # rngs.params() of NNX folds, too

# Keys that are made, not handed down, and why they may be.
MADE = {
    "train/folder.py": "the root of all",
    "train/training.py": "the same root, as the first process sent it",
    "train/feed.py": "for shapes alone",
    "models/frozen_prefix.py": "for shapes alone",
    "models/generation.py": "greedy and beam search, which draw nothing",
    "models/pretrained.py": "a new classifier's first values, which are public",
    "train/network.py": "for shapes alone",
    "cli/bench.py": "for steps that are timed and thrown away",
    "noise/bits.py": "the caller's own key, with its type",
    "devices/shard_map.py": "the same key, marked as one that differs by device",
    "train/checkpoint.py": "the place of a key that a checkpoint stored",
    "papers/figures/squared_error.py": "a simulation on public numbers, by its seed",
    "nnx.py": "the caller's key for the loss, with the type of NNX's own",
    "testing/rules.py": "for a mechanism without noise",
    "audit/named.py": "an audit, by its seed: nothing of it is published data",
}


def test_keys_are_made_in_few_places():
    made = {
        path
        for path, _, call in calls()
        if name_of(call) in ("jax.random.key", "jax.random.PRNGKey", "jax.random.wrap_key_data")
    }
    assert made <= set(MADE), made - set(MADE)


def derived(function, key):
    """Says whether a draw's key is a parameter, or was made by a fold in the same function."""
    if isinstance(key, ast.Call):
        return ast.unparse(key.func).split(".")[-1] in DERIVED
    if not isinstance(key, ast.Name) or function is None:
        return False
    arguments = function.args
    if key.id in {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}:
        return True
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.comprehension | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.value if isinstance(node, ast.Assign) else node.iter
            if key.id in {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}:
                folds = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
                return any(ast.unparse(n.func).split(".")[-1] in DERIVED for n in folds)
    return False


def random_draws():
    for path, function, call in calls():
        module, _, name = name_of(call).rpartition(".")
        if module == "jax.random" and name in DRAWS:
            yield path, function, call


def test_every_draw_takes_a_key_that_was_handed_down_or_folded():
    found = list(random_draws())
    assert len(found) >= 3  # flips, shifts and initial weights at least
    for path, function, call in found:
        assert derived(function, call.args[0]), f"{path}: {ast.unparse(call)}"


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return jax.random.normal(jax.random.key(0), ())",
        "def f(x):\n    k = KEY\n    return jax.random.normal(k, ())",
        "def f(x):\n    k = jax.random.key(0)\n    return jax.random.normal(k, ())",
        "def f(x): return jax.random.normal(ROOT, ())",
    ],
)
def test_a_key_from_nowhere_would_be_noticed(source):
    function = ast.parse(source).body[0]
    (call,) = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and name_of(node) == "jax.random.normal"
    ]
    assert not derived(function, call.args[0])


def test_no_other_source_of_randomness_is_imported():
    """`secrets` asks the operating system; NumPy's generators are public, or seeded by a key."""
    for path in PACKAGE.rglob("*.py"):
        if path == PACKAGE / "testing" / "trials.py":
            continue  # hypothesis takes its seed as a generator of this module
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
                assert not names & {"random", "uuid"}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("random", "uuid"), path


def test_no_two_keys_of_runs_and_steps_and_streams_are_equal():
    """Two experiments, their successors, members, streams and steps: all keys, of two seeds."""
    seen = []
    lineages = [small.experiment().identity, small.experiment(train__steps=7).identity]
    lineages.append(next_lineage(*lineages, 3))
    for seed, lineage, member in itertools.product((0, 1), lineages, range(3)):
        key = member_key(root_key(seed), lineage, member)
        streams = [noise.stream(key, name) for name in ("init", "noise", "sampling", "augment")]
        seen += [words(key), *map(words, streams)]
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        for root in streams[1:]:
            folded = fold(root, np.arange(50))
            seen += map(tuple, np.asarray(jax.random.key_data(folded)).tolist())
        steps = fold(streams[1], np.arange(50))
        for name in ("noise/gradient", "noise/statistic"):
            own = jax.vmap(lambda k, name=name: noise.stream(k, name))(steps)
            seen += map(tuple, np.asarray(jax.random.key_data(own)).tolist())
    assert len(set(seen)) == len(seen)
