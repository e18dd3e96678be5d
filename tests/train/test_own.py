"""Data and models of one's own: files, functions, sources of any size; nothing runs unasked."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from dpjax.cli import main
from dpjax.data import Dataset, Rows, Split, fingerprints, read_file
from dpjax.models.parameters import flat
from dpjax.train import RunFolder, allow_import, build_program, train
from tests.train.small import N, experiment, images

DATA = images()
MINE = """
import numpy as np
from flax import nnx
from dpjax.data import Dataset, Split
from tests.train.small import images

def stripes():
    data = images()
    return Dataset("other", data.train, data.test, 3, data.pixels)

def nothing():
    return 3

class Net(nnx.Module):
    def __init__(self, shape, classes, *, hidden=4, rngs):
        self.one = nnx.Linear(int(np.prod(shape)), hidden, rngs=rngs)
        self.two = nnx.Linear(hidden, classes, rngs=rngs)

    def __call__(self, x):
        return self.two(nnx.relu(self.one(x.reshape(-1))))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_own.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mine_own"
    sys.modules.pop("mine_own", None)


class Own:
    """A user's class: rows by number, one at a time."""

    def __init__(self, split=DATA.train):
        self.split, self.read = split, 0

    def __len__(self):
        return len(self.split.y)

    def __getitem__(self, row):
        self.read += 1
        return {"x": self.split.x[row], "y": int(self.split.y[row])}


def as_list(source):
    return [source[i] for i in range(len(source))]


def grain_source(source):
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(as_list(source))


def hugging_face(source):
    datasets = pytest.importorskip("datasets")
    columns = {"x": [row["x"].tolist() for row in as_list(source)]}
    columns["y"] = [row["y"] for row in as_list(source)]
    return datasets.Dataset.from_dict(columns)


SOURCES = {"class": lambda source: source, "list": as_list}
SOURCES |= {"grain": grain_source, "hugging face": hugging_face}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SOURCES)
def test_any_source_gives_the_rows_of_the_arrays(kind):
    rows = Rows(SOURCES[kind](Own()))
    assert len(rows) == N
    wanted = np.array([3, 0, 77])
    found = rows.__getitems__(wanted)
    np.testing.assert_array_equal(found.x, DATA.train.x[wanted])
    np.testing.assert_array_equal(found.y, DATA.train.y[wanted])


def test_a_source_trains_as_its_arrays_do(tmp_path):
    """Fed by the host in both cases; a source is never read as a whole."""
    asked = experiment(run__seed=5, run__data="host", train__steps=3)
    source = Own()
    lazy = Dataset("stripes", Rows(source), DATA.test, 3, DATA.pixels)
    [one], [other] = (train(asked, data, tmp_path / str(i)) for i, data in enumerate((DATA, lazy)))
    for name, leaf in flat(one.state.params).items():
        np.testing.assert_array_equal(leaf, flat(other.state.params)[name])
    marks = fingerprints(lazy)
    assert marks["training"].startswith("some ")
    statement = (tmp_path / "1" / "statement.md").read_text()
    assert "a fingerprint of at most 4096 of them" in statement
    assert "fingerprint" not in (tmp_path / "0" / "statement.md").read_text()


def test_a_fingerprint_sees_a_changed_row_that_it_reads():
    changed = Split(DATA.train.x.copy(), DATA.train.y)
    changed.x[17, 0, 0] ^= 1
    one, other = (
        fingerprints(Dataset("a", Rows(Own(split)), DATA.test, 3, DATA.pixels))["training"]
        for split in (DATA.train, changed)
    )
    assert one != other


def test_a_stream_is_refused_with_the_reason():
    with pytest.raises(TypeError, match="A stream cannot be sampled as the accounting says"):
        Rows(iter([(np.zeros(2), 0)]))


@pytest.mark.parametrize("label", [3, -1, 0.5])
def test_labels_of_a_source_are_checked(label):
    with pytest.raises((TypeError, ValueError), match="labels"):
        Dataset("a", Rows([(np.zeros(2, np.float32), label)] * 3), DATA.test, 3)


def write(path, kind):
    x = DATA.train.x.reshape(N, -1).astype(np.float32)
    test = DATA.test.x.reshape(len(DATA.test.y), -1).astype(np.float32)
    if kind == "npz":
        arrays = {"x_train": x, "y_train": DATA.train.y, "x_test": test, "y_test": DATA.test.y}
        np.savez(path, **arrays)
        return
    columns = {f"f{i}": [*x[:, i], *test[:, i]] for i in range(x.shape[1])}
    columns["label"] = [*DATA.train.y.tolist(), *DATA.test.y.tolist()]
    columns["split"] = ["train"] * len(x) + ["test"] * len(test)
    if kind == "csv":
        rows = [",".join(columns), *(",".join(map(str, r)) for r in zip(*columns.values()))]  # noqa: B905
        path.write_text("\n".join(rows) + "\n")
        return
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_a_file_is_a_data_set(tmp_path, kind):
    write(tmp_path / f"mine.{kind}", kind)
    read = read_file(tmp_path / f"mine.{kind}", "stripes")
    assert (read.name, read.classes, read.shape, read.size) == ("stripes", 3, (36,), N)
    np.testing.assert_array_equal(read.train.x, DATA.train.x.reshape(N, -1))
    np.testing.assert_array_equal(read.test.y, DATA.test.y)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,label\n1,0\n", "no column 'split'"),
        ("a,split\n1,train\n", "no column 'label'"),
        ("a,label,split\nx,0,train\n", "expected numbers"),
        ("a,label,split\n1,0,dev\n", "split 'dev': expected train or test"),
        ("a,label,split\n1,0,train\n", "no test examples"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_name(tmp_path, text, message):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.csv: .*{message}|bad\.csv: {message}"):
        read_file(tmp_path / "bad.csv", "bad")
    with pytest.raises(ValueError, match=r"expected \.npz, \.csv or \.parquet"):
        read_file(tmp_path / "bad.pkl", "bad")


def test_a_config_alone_runs_no_code(mine, tmp_path, capsys):
    flags = ["--set", "train.steps=2", "--set", "train.batch_size=12", "--epsilon", "8"]
    flags += ["--set", "privacy.accountant=rdp", "--quiet", "--out", str(tmp_path / "run")]
    data, model = ["--set", f"data.name={mine}:stripes"], ["--set", f"model.name={mine}:Net"]
    for what, field in ((data, "data.name"), (model, "model.name")):
        assert main(["train", *what, *flags]) == 2
        said = capsys.readouterr().err
        assert f"{field} = '{mine}:" in said
        assert f"expected --import {mine} first" in said
        assert mine not in sys.modules
    own = ["--import", mine, "--set", "model.hidden=5"]
    assert main(["train", *data, *model, *own, *flags]) == 0
    capsys.readouterr()
    stored = RunFolder(tmp_path / "run").read_config()
    assert (stored.data.name, stored.model.options["hidden"]) == (f"{mine}:stripes", 5)
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "out")]) == 0


def test_what_is_named_must_be_there_and_be_data(mine):
    allow_import(mine)
    from dpjax.data import from_function  # noqa: PLC0415

    with pytest.raises(ValueError, match="expected a function or class 'absent' in mine_own"):
        from_function(f"{mine}:absent")
    with pytest.raises(TypeError, match=r"returned a int, expected a dpjax\.data\.Dataset"):
        from_function(f"{mine}:nothing")


def test_bfloat16_computes_in_half_and_keeps_the_rest():
    """Parameters, gradients and their norms are float32; the network's products are not."""
    plain, half = (
        build_program(experiment(**({"train__precision": p} if p else {})), DATA)
        for p in (None, "bfloat16")
    )
    assert plain.plan.experiment.identity != half.plan.experiment.identity
    state = jax.jit(half.init)(jax.random.key(0))
    examples = build_examples()
    text = str(jax.make_jaxpr(lambda s: half.gradients_of(s)(s.params, examples).norms)(state))
    assert "bf16" in text
    found = {}
    for name, program in (("plain", plain), ("half", half)):
        grads = jax.jit(
            lambda s, p=program: p.plan.method.clipped_sum(
                p.gradients_of(s)(s.params, examples), s.opt_state
            )
        )(state)
        found[name] = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads.gradient)])
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(grads.gradient))
    assert 0 < np.abs(found["plain"] - found["half"]).max() < 2e-2 * np.abs(found["plain"]).max()


def build_examples():
    from dpjax.train.feed import examples_of  # noqa: PLC0415

    return jax.tree.map(lambda leaf: leaf[:20], examples_of(DATA.train))


LARGE = """
import sys
from pathlib import Path
import numpy as np
from dpjax.data import Dataset, Pixels, Split
from dpjax.train import Experiment, train

rows, place = 5 * 10**9 // 3072, Path(sys.argv[1])
x = np.lib.format.open_memmap(place / "x.npy", "w+", np.uint8, (rows, 32, 32, 3))
small = Split(np.zeros((50, 32, 32, 3), np.uint8), np.zeros(50, np.int32))
pixels = Pixels(255.0, (0.5,) * 3, (0.5,) * 3)
data = Dataset("large", Split(x, np.zeros(rows, np.int32)), small, 2, pixels)
plain = {
    "data": {"name": "large"},
    "model": {"name": "linear"},
    "method": {"name": "dp_sgd", "noise_multiplier": 1.0},
    "train": {"batch_size": 256, "steps": 40},
    "privacy": {"accountant": "rdp", "delta": 1e-7},
    "run": {"evaluate_every": 10},
}
seen = []
def used():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])
train(Experiment.from_plain(plain), data, place / "run", callback=lambda rows: seen.append(used()))
print(*(kib // 1024 for kib in seen))
"""


@pytest.mark.slow
def test_five_gigabytes_train_in_constant_memory(tmp_path):
    """A memory map; its pages are the file's, which the system takes back when it needs them."""
    command = [sys.executable, "-c", LARGE, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    used = [int(word) for word in ran.stdout.split()]
    print("MiB at each evaluation:", used)
    assert len(used) == 4
    assert used[-1] < 1000
    assert used[-1] - used[0] < 0.1 * used[0]
