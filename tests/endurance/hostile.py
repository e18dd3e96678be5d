"""Files that a hostile hand may have written, and the command lines that read them."""

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.cli.run_folders import write_run
from tests.endurance.watched import MARK

CODE = f"__import__('os').system('touch {MARK}')"


class Bomb:
    """What a pickle can do: run a command when it is read."""

    def __reduce__(self):
        return os.system, (f"touch {MARK}",)


BASE = {
    "method": 'name = "dp_sgd"\nnoise_multiplier = 1.0',
    "train": "batch_size = 64\nsteps = 1",
}


def toml(**tables):
    """Returns a config with these tables, which would run otherwise."""
    tables = {**BASE, **tables}
    return "\n".join(f"[{name}]\n{body}" for name, body in tables.items())


def config(place, text):
    """A command that trains from a config with this text."""
    (place / "c.toml").write_text(text, encoding="utf-8")
    return ["train", "--config", "c.toml", "--quiet"]


def method(name):
    """A method in plain form with any name: without --out, the folder is named by it."""
    rule = 'rule = { kind = "abadi" }\nthreshold = 1\nnoise_multiplier = 1'
    return toml(method=f'kind = "Mechanism"\nname = "{name}"\n{rule}')


# By name: what a config says, and a word of the refusal.
CONFIGS = {
    "code as a data set": (toml(data=f'name = "{CODE}"'), "data set"),
    "code as a model": (toml(model=f'name = "{CODE}"'), "model"),
    "code as an activation": (toml(model=f'name = "mlp"\nactivation = "{CODE}"'), "activation"),
    "code as an optimizer": (toml(optimizer=f'name = "{CODE}"'), "optimizer.name"),
    "code as a number": (toml(optimizer=f'learning_rate = "{CODE}"'), "learning_rate"),
    "code as an argument": (
        toml(method=f'name = "dp_sgd"\nnoise_multiplier = 1\nthreshold = "{CODE}"'),
        "threshold",
    ),
    "code as a schedule": (
        toml(optimizer=f'learning_rate = {{ name = "{CODE}" }}'),
        "learning_rate.name",
    ),
    "code as an augmentation": (
        toml(train=f'augment = ["{CODE}"]\nbatch_size = 64\nsteps = 1'),
        "augment",
    ),
    "a module as a kind": (toml(method=f'kind = "{MARK}.Thing"'), "kind"),
    "os.system as a kind": (toml(method='kind = "os.system"\ncommand = "x"'), "kind"),
    "a class as a kind": (toml(method='kind = "Experiment"'), "kind"),
    "a record of another family": (toml(method='kind = "Poisson"\nrate = 0.1'), "method"),
    "a record inside": (
        toml(method=f'name = "dp_sgd"\nnoise_multiplier = 1\nthreshold = {{ kind = "{MARK}" }}'),
        "kind",
    ),
    "an attribute as an optimizer": (toml(optimizer='name = "__class__"'), "optimizer.name"),
    "a module of optax": (toml(optimizer='name = "contrib"'), "optimizer.name"),
    "a private function": (toml(optimizer='name = "_src"'), "optimizer.name"),
    "no method's name": (toml(method='name = "Mechanism"\nnoise_multiplier = 1'), "method.name"),
    "a data set outside": (toml(data='name = "../../secret"'), "data set"),
    "a data set by its path": (toml(data='name = "/etc"'), "data set"),
    "a model by its path": (toml(model='name = "../models/mlp"'), "model"),
    "a run outside": (method("../../../secret/run"), "name"),
    "a run in a new folder outside": (method("x/../../../../secret/run"), "name"),
    "a run by its path": (method("/tmp/dpjax-hostile-run"), "name"),
    "a name with a zero byte": (method("a\\u0000b"), "name"),
    "a name that is empty": (method(""), "name"),
    "a key of a terminal": (toml(train='"\\u001b[2J" = 1\nsteps = 1'), "unknown"),
    "nesting without end": ("x = " + "[" * 100_000, "c.toml"),
    "tables without end": (f"[{'.'.join(['a'] * 5_000)}]", "a"),
    "a number of 5000 digits": (toml(train=f"steps = {'9' * 5000}"), "c.toml"),
    "a number of 400 digits": (toml(train=f"steps = {'9' * 400}"), "train.steps"),
    "a hexadecimal number of 5000 digits": (toml(train=f"steps = 0x{'f' * 5000}"), "train.steps"),
    "1e400": (toml(optimizer="learning_rate = 1e400"), "learning_rate"),
    "1e400 steps": (toml(train="batch_size = 64\nepochs = 1e400"), "train.epochs"),
    "nan": (toml(privacy="epsilon = nan"), "privacy.epsilon"),
    "more layers than memory": (toml(model='name = "mlp"\nhidden = 1e18'), "hidden"),
    "a seed as code": (toml(run=f'seed = "{CODE}"'), "run.seed"),
    "zero bytes": ("\0\0\0", "c.toml"),
    "weights that do not exist": (toml(model='weights = "../secret/none.npz"'), "none.npz"),
    "weights that are a folder": (toml(model='weights = "/"'), "plain file"),
    "weights that never end": (toml(model='weights = "/dev/zero"'), "plain file"),
    "weights with a zero byte": (toml(model='weights = "a\\u0000b"'), "null"),
    "weights as a number": (toml(model="weights = 0"), "model.weights"),
}


def pickled(form):
    """Returns a file that runs a command when it is read as NumPy may read it."""
    if form == "pickle":
        return pickle.dumps(Bomb())
    buffer = io.BytesIO()
    bombs = np.empty(1, object)
    bombs[0] = Bomb()
    if form == "npy":
        np.save(buffer, bombs, allow_pickle=True)
    else:
        np.savez(buffer, kernel=bombs)
    return buffer.getvalue()


def lying_npz():
    """Returns an .npz whose array says that it has 2^60 numbers."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }"
    head += b" " * (63 - len(head) % 64) + b"\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("kernel.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    return buffer.getvalue()


WEIGHTS = {
    "weights that are a pickle": lambda: pickled("pickle"),
    "weights with a pickled array": lambda: pickled("npz"),
    "one pickled array": lambda: pickled("npy"),
    "weights larger than they are": lying_npz,
    "weights that are no archive": lambda: b"PK\x03\x04" + bytes(100),
}


def run_json(**changes):
    names = ("dpjax", "jax", "jaxlib", "platform", "device", "xla_flags", "matmul_precision")
    versions = dict.fromkeys((*names, "noise"), "0")
    environment = {**versions, "threefry_partitionable": True, "x64": False}
    plain = {"lineage": "0" * 64, "member": 0, "members": 1, "varied": []}
    plain["environment"] = environment
    return json.dumps({**plain, **changes})


LINEAGES = {
    "a lineage outside": "../../../secret",
    "a lineage by its path": "/tmp/dpjax-secret",
    "no lineage": "",
    "a lineage that is a list": [],
    "a lineage of other digits": "g" * 64,
}

# By name: a file of a run folder and what a hostile hand wrote there.
FILES = {
    "run.json is a list": ("run.json", "[]"),
    "run.json is a number": ("run.json", "1e999"),
    "run.json has more": ("run.json", run_json(more=1)),
    "run.json nests": ("run.json", "[" * 100_000),
    "a member by its path": ("run.json", run_json(member="../../secret")),
    "varied is code": ("run.json", run_json(varied=[CODE])),
    "an environment that is code": ("run.json", run_json(environment=CODE)),
    "an environment that has more": ("run.json", run_json(environment={"more": 1})),
    "released.jsonl is empty": ("released.jsonl", ""),
    "released.jsonl is a list": ("released.jsonl", "[1]\n"),
    "released.jsonl has no numbers": ("released.jsonl", '{"step": 4}\n'),
    "released.jsonl is code": ("released.jsonl", json.dumps({"step": CODE}) + "\n"),
    "released.jsonl is broken": ("released.jsonl", '{"step": \n'),
    "released.jsonl nests": ("released.jsonl", "[" * 100_000 + "\n"),
    "steps.csv is code": ("steps.csv", f"step,threshold\n{CODE},1\n"),
    "steps.csv is ragged": ("steps.csv", "a\nb,c,d,e,f,g\n1\n"),
    "steps.csv is empty": ("steps.csv", ""),
    "ledger.json is code": ("ledger.json", json.dumps(CODE)),
    "ledger.json has a kind": ("ledger.json", json.dumps({"kind": f"{MARK}.Ledger"})),
    "ledger.json has no entries": (
        "ledger.json",
        json.dumps({"kind": "Ledger", "dataset": "d", "entries": [{"kind": "os.system"}]}),
    ),
    "ledger.json nests": ("ledger.json", '{"a":' * 100_000),
    "config.toml is empty": ("config.toml", ""),
    "config.toml has a kind": ("config.toml", toml(method=f'kind = "{MARK}.Thing"')),
    "config.toml is code": ("config.toml", CODE),
    "diagnostics.jsonl is a list": ("diagnostics.jsonl", "[]\n"),
    "diagnostics.jsonl has no numbers": ("diagnostics.jsonl", '{"step": 0}\n'),
}

LINKS = (
    "lock",
    "steps.csv",
    "released.jsonl",
    "ledger.json.new",
    "config.toml.new",
    "plots",
    "plots/run.png",
)


@cache
def _template():
    """Returns a folder with a run, and what keeps it there."""
    folder = tempfile.TemporaryDirectory()
    write_run(Path(folder.name) / "run")
    return folder


def a_run(place):
    """Puts a run into a folder."""
    return Path(shutil.copytree(Path(_template().name) / "run", place / "run"))


class Case(NamedTuple):
    """One case: `write` makes its files in a folder and returns the command line; then `word` is
    said.
    """

    name: str
    write: Callable[[Path, Path], list[str]]
    word: str


def cases() -> list[Case]:
    """Returns all cases; each is written into a folder of its own, beside one that is secret."""
    return [*_configs(), *_weights(), *_lineages(), *_files(), *_links(), _data()]


def _configs() -> Iterator[Case]:
    for name, (text, word) in CONFIGS.items():
        yield Case(name, lambda place, _, text=text: config(place, text), word)


def _weights() -> Iterator[Case]:
    for name, content in WEIGHTS.items():

        def write(place, _, content=content):
            (place / "w.npz").write_bytes(content())
            return config(place, toml(model='name = "linear"\nweights = "w.npz"'))

        yield Case(name, write, "w.npz")


def _lineages() -> Iterator[Case]:
    for name, lineage in LINEAGES.items():
        for command in (["export", "run", "--output", "o"], ["train", "--resume", "--out", "run"]):

            def write(place, _, lineage=lineage, command=command):
                run = a_run(place)
                (run / "run.json").write_text(run_json(lineage=lineage))
                return command

            yield Case(f"{name}, {command[0]}", write, "lineage")


def _files() -> Iterator[Case]:
    for name, (file, text) in FILES.items():

        def write(place, _, file=file, text=text):
            (a_run(place) / file).write_text(text)
            if file == "run.json":
                return ["train", "--resume", "--out", "run", "--quiet"]
            return ["plot", "runs", "run"]

        yield Case(name, write, "")


def _links() -> Iterator[Case]:
    resume, plot = ["train", "--resume", "--out", "run", "--quiet"], ["plot", "runs", "run"]
    for name in LINKS:

        def write(place, secret, name=name):
            link = a_run(place) / name
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(secret if name == "plots" else secret / "config.toml")
            return plot if name.startswith("plots") else resume

        yield Case(f"{name} is a link", write, "is a link")


def _data() -> Case:
    def write(place, _):
        file = place / "data" / "mnist" / "train-images-idx3-ubyte.gz"
        file.parent.mkdir(parents=True)
        header = struct.pack(">IIII", 0x803, 60_000, 28, 28)
        file.write_bytes(gzip.compress(header + bytes(10**7)))
        return ["train", "--set", "data.name=mnist", "--data-dir", "data", "--quiet"]

    return Case("data that unpack to more", write, "wrong size")


# What the watch must see: code that a hostile file would like to run.
ARMS = {
    "code that runs": f"import os; os.system('true  # {MARK}')",
    "a file written outside": "open('../../outside', 'w')",
    "a secret that is read": "open('../../secret/config.toml')",
    "a pickle": f"import pickle; pickle.loads({pickled('pickle')!r})",
    "a folder removed": "import shutil; shutil.rmtree('../../secret/none', ignore_errors=True)",
    "a hostile module": f"import {MARK}",
}
