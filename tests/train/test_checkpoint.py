"""Checkpoints: bit for bit back, refused when a byte is wrong, and the one before still works."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import _files
from dpjax.train import checkpoint
from dpjax.train.checkpoint import CheckpointError

LIKE = {"w": np.zeros((4, 3), np.float32), "t": np.zeros((), np.int32)}


class Checkpoints(checkpoint.Checkpoints):
    """Checkpoints that are complete when `save` returns."""

    def save(self, step, state, meta):
        super().save(step, state, meta)
        self.wait()


class Carried(NamedTuple):
    key: Any
    nothing: tuple[()]
    count: Any


def numbered(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full((4, 3), step, np.float32), "t": np.array(step, np.int32)}


def is_numbered(state: Any, step: int) -> bool:
    return bool(np.all(state["w"] == step)) and int(state["t"]) == step


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def bits(leaf: Any) -> tuple[Any, ...]:
    data = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
    return leaf.dtype, leaf.shape, data.tobytes()


def same_bits(one: Any, other: Any) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(bits(a) == bits(b) for a, b in pairs)


def round_trip(folder: Path, state: Any, like: Any) -> Any:
    Checkpoints(folder, "run").save(1, state, {})
    restored = Checkpoints(folder, "run").restore(like)
    assert restored is not None
    assert restored[0] == 1
    assert restored[2:] == ({}, ())
    return restored.state


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoints = Checkpoints(folder, "run", keep=3)
    for step in (10, 20, 30):
        checkpoints.save(step, numbered(step), {"step": step})
    return folder


@pytest.fixture
def three(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def test_a_training_state_comes_back_bit_for_bit(tmp_path):
    model = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    params = nnx.split(model)[1]
    tx = optax.chain(optax.clip(1.0), optax.adam(optax.constant_schedule(1e-3)), optax.ema(0.9))
    updates, opt_state = tx.update(params, tx.init(params), params)
    keys = jax.random.split(jax.random.key(7), (2, 3))
    carried = Carried(jax.random.key(5), (), jnp.asarray(3, jnp.int32))
    state = {"params": updates, "opt": opt_state, "carried": (carried, keys, None, [])}
    blank = jax.tree.map(lambda leaf: leaf if is_key(leaf) else jnp.zeros_like(leaf), state)
    blank["carried"] = (carried._replace(key=jax.random.key(0)), keys[::-1], None, [])
    back = round_trip(tmp_path, state, blank)
    assert same_bits(back, state)
    assert not same_bits(blank, state)
    drawn, expected = (jax.random.bits(x["carried"][0].key, (3,)) for x in (back, state))
    assert np.array_equal(drawn, expected)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(back))


def test_numbers_that_are_easily_lost(tmp_path):
    nans = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 1], np.uint32)
    state: dict[str, Any] = {
        "nan payloads, signed zero, subnormal": nans.view(np.float32),
        "minus zero": jnp.asarray(-0.0),
        "all minus zero": jnp.full((3, 2), -0.0, jnp.bfloat16),
        "zeros": np.zeros(5, np.float64),
        "wide": np.array([np.pi, np.inf, -np.inf]),
        "scalar": np.float64(1 / 3),
        "bool": jnp.array([True, False]),
        "transposed": np.arange(12, dtype=np.uint8).reshape(3, 4).T,
        "no elements": jnp.zeros((0, 3), jnp.float16),
        "no keys": jax.random.split(jax.random.key(1), 0),
        "other generator": jax.random.key(3, impl="rbg"),
        "names/with.odd [chars]": np.arange(3),
    }
    assert same_bits(round_trip(tmp_path, state, state), state)


def test_a_state_without_arrays(tmp_path):
    assert round_trip(tmp_path, {"nothing": None, "empty": ()}, {"nothing": None, "empty": ()}) == {
        "nothing": None,
        "empty": (),
    }


def test_shapes_alone_are_enough_and_arrays_go_where_like_has_them(tmp_path):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    keys = jax.random.split(jax.random.key(2), 8)
    state = {"x": jnp.arange(16.0), "keys": keys, "host": np.arange(3), "free": jnp.ones(2)}
    like = {**state, "x": jax.device_put(state["x"], split), "keys": jax.device_put(keys, split)}
    back = round_trip(tmp_path, like, like)
    assert same_bits(back, state)
    assert back["x"].sharding == split
    assert back["keys"].sharding.is_equivalent_to(split, 1)
    assert isinstance(back["host"], np.ndarray)
    shapes = jax.eval_shape(lambda: {name: state[name] for name in ("x", "keys", "free")})
    restored = Checkpoints(tmp_path, "run").restore({**shapes, "host": np.zeros(3, int)})
    assert restored is not None
    assert same_bits(restored.state, state)


def test_meta_comes_back(tmp_path):
    meta = {"ledger": [{"sigma": 0.1, "steps": 3}], "epsilon": float("inf"), "text": 'é\n"', "n": 1}
    Checkpoints(tmp_path, "run").save(1, {}, meta)
    restored = Checkpoints(tmp_path, "run").restore({})
    assert restored is not None
    assert restored.meta == meta


def test_nothing_there(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none", "run")
    assert checkpoints.restore(LIKE) is None
    assert checkpoints.restore(LIKE, 3) is None
    assert checkpoints.steps() == []
    assert not (tmp_path / "none").exists()


def test_keep_and_the_step_asked_for(tmp_path):
    checkpoints = Checkpoints(tmp_path, "run", keep=2)
    (tmp_path / "notes.txt").write_text("not ours")
    for step in range(5):
        checkpoints.save(step, numbered(step), {})
        assert checkpoints.steps() == list(range(max(0, step - 1), step + 1))
    assert len(list(tmp_path.iterdir())) == 3
    restored = checkpoints.restore(LIKE, 3)
    assert restored is not None
    assert restored.step == 3
    assert is_numbered(restored.state, 3)
    with pytest.raises(CheckpointError, match=r"step = 1: expected one of \[3, 4\]"):
        checkpoints.restore(LIKE, 1)


def test_what_is_saved_last_is_the_newest_after_going_back(three):
    checkpoints = Checkpoints(three, "run", keep=3)
    checkpoints.save(20, {**numbered(20), "w": np.full((4, 3), 21, np.float32)}, {"again": True})
    assert checkpoints.steps() == [10, 20]
    restored = checkpoints.restore(LIKE)
    assert restored is not None
    assert restored.meta == {"again": True}
    assert restored.state["w"][0, 0] == 21


def test_what_the_run_went_back_behind_is_gone_with_the_first_save(three):
    """A refused checkpoint must not push out the one that serves before a new one is sealed."""
    flip(files_of(newest(three))[-1], random.Random(0))
    checkpoints = Checkpoints(three, "run")
    assert checkpoints.restore(LIKE).step == 20
    checkpoints.save(40, numbered(40), {})
    assert Checkpoints(three, "run").steps() == [20, 40]


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def shorten(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def lengthen(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(1))


def to_link(path: Path, rng: random.Random) -> None:
    del rng
    path.rename(path.parents[3] / "elsewhere")
    path.symlink_to(path.parents[3] / "elsewhere")


@pytest.mark.parametrize("damage", [flip, shorten, lengthen, Path.unlink, to_link])
def test_every_file_is_covered(written, tmp_path, damage):
    names = [path.relative_to(newest(written)) for path in files_of(newest(written))]
    assert len(names) > 5
    for name in names:
        folder = Path(shutil.copytree(written, tmp_path / "a" / "b" / "copy"))
        path = newest(folder) / name
        path.unlink() if damage is Path.unlink else damage(path, random.Random(str(name)))
        restored = Checkpoints(folder, "run").restore(LIKE)
        assert restored is not None
        assert (restored.step, restored.meta) == (20, {"step": 20})
        assert is_numbered(restored.state, 20)
        if damage is Path.unlink and name.name == _files.MANIFEST:
            assert restored.refused == ()  # killed before it was complete: nothing to report
        else:
            (sentence,) = restored.refused
            assert sentence.startswith("checkpoint of step 30 refused: ")
            assert str(name) in sentence
            with pytest.raises(CheckpointError, match="step 30 refused"):
                Checkpoints(folder, "run").restore(LIKE, 30)
        shutil.rmtree(tmp_path / "a")


def test_bytes_all_over_the_manifest_are_covered(three):
    path = newest(three) / _files.MANIFEST
    sound = path.read_bytes()
    for place in [*range(0, len(sound), 13), len(sound) - 1]:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x20]) + sound[place + 1 :])
        with pytest.raises(_files.Refused):
            _files.read_manifest(path.parent)
    path.write_bytes(sound)
    assert _files.read_manifest(path.parent)["meta"] == {"step": 30}


def test_a_file_of_another_run_is_refused(three):
    (newest(three) / "default" / "notes.txt").write_text("hello")
    restored = Checkpoints(three, "run").restore(LIKE)
    assert restored is not None
    assert restored.step == 20
    assert "default/notes.txt is not in the manifest" in restored.refused[0]


def test_fall_back_goes_on_and_all_reasons_are_given(three):
    first, second, third = sorted(three.iterdir())
    flip(files_of(third)[-1], random.Random(0))
    (second / _files.MANIFEST).write_text("{}")
    restored = Checkpoints(three, "run").restore(LIKE)
    assert restored is not None
    assert restored.step == 10
    assert is_numbered(restored.state, 10)
    assert [sentence.split(" refused")[0] for sentence in restored.refused] == [
        "checkpoint of step 30",
        "checkpoint of step 20",
    ]
    shutil.rmtree(first / "default")
    with pytest.raises(CheckpointError, match=r"step 30 .*; .*step 20 .*; .*step 10 .*missing"):
        Checkpoints(three, "run").restore(LIKE)
    Checkpoints(three, "run").save(15, numbered(15), {})
    assert Checkpoints(three, "run").steps() == [10, 15]  # what was refused behind it is gone


def test_a_foreign_checkpoint_is_refused(three, tmp_path):
    with pytest.raises(CheckpointError, match=r"of another run, 'run', expected 'other'"):
        Checkpoints(three, "other").restore(LIKE)
    renamed = three / "step_00000090"
    newest(three).rename(renamed)
    restored = Checkpoints(three, "run").restore(LIKE)
    assert restored is not None
    assert restored.step == 20
    assert "its folder was 'step_00000030'" in restored.refused[0]
    (tmp_path / "step_00000091").symlink_to(renamed)
    assert Checkpoints(tmp_path, "run").steps() == []


@pytest.mark.parametrize(
    ("like", "reason"),
    [
        (
            {**LIKE, "w": np.zeros((4, 2), np.float32)},
            r"\['w'\] .*float32\[4, 3\].*float32\[4, 2\]",
        ),
        ({**LIKE, "w": jnp.zeros((4, 3), jnp.int32)}, r"\['w'\] .*float32\[4, 3\].*int32\[4, 3\]"),
        (
            {**LIKE, "t": jax.random.key(0)},
            r"\['t'\] is stored as int32\[\], expected key<fry>\[\]",
        ),
        ({**LIKE, "more": np.zeros(1)}, r"leaf \['more'\] float64\[1\] is not stored"),
        ({"w": LIKE["w"]}, r"leaf \['t'\] is stored as int32\[\], expected no such leaf"),
        (list(LIKE.values()), r"leaf \[0\] float32\[4, 3\] is not stored"),
    ],
)
def test_another_structure_is_refused(written, like, reason):
    with pytest.raises(CheckpointError, match=reason):
        Checkpoints(written, "run").restore(like)


class Pair(NamedTuple):
    mean: Any
    scale: Any


class Swapped(NamedTuple):
    scale: Any
    mean: Any


def test_fields_that_change_places_keep_their_values(tmp_path):
    Checkpoints(tmp_path, "run").save(1, Pair(np.zeros(2), np.ones(2)), {})
    restored = Checkpoints(tmp_path, "run").restore(Swapped(np.zeros(2), np.zeros(2)))
    assert restored is not None
    assert restored.state.scale.tolist() == [1.0, 1.0]
    assert restored.state.mean.tolist() == [0.0, 0.0]


def reseal(checkpoint: Path, **changes: Any) -> None:
    content = _files.read_manifest(checkpoint) | changes
    (checkpoint / _files.MANIFEST).unlink()
    _files.seal(checkpoint, {key: value for key, value in content.items() if key != "files"})


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "dpjax checkpoint 0"},
        {"leaves": None},
        {"leaves": [[[], {}, 3]]},
        {"leaves": {"['t']": "int32[]", "['w']": ["x"]}},
        {"meta": [1]},
        {"identity": ["run"]},
    ],
)
def test_a_forged_manifest_is_refused(three, changes):
    reseal(newest(three))
    restored = Checkpoints(three, "run").restore(LIKE)
    assert restored is not None
    assert restored.step == 30  # the forger's hand alone changes nothing
    reseal(newest(three), **changes)
    restored = Checkpoints(three, "run").restore(LIKE)
    assert restored is not None
    assert restored.step == 20


def test_forged_arrays_are_refused(three, tmp_path):
    other = {"w": np.zeros((4, 5), np.float32), "t": np.array(1, np.int32)}
    Checkpoints(tmp_path / "other", "run").save(30, other, {})
    shutil.rmtree(newest(three) / "default")
    shutil.copytree(newest(tmp_path / "other") / "default", newest(three) / "default")
    reseal(newest(three))
    for path in [None, *files_of(newest(three) / "default")]:
        if path is not None:
            path.write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
            reseal(newest(three))
        restored = Checkpoints(three, "run").restore(LIKE)
        assert restored is not None
        assert restored.step == 20
        assert len(restored.refused) == 1


def test_a_manifest_of_endless_brackets_is_refused(three):
    body = b"[" * 100_000
    (newest(three) / _files.MANIFEST).write_bytes(_files._signed(body))
    restored = Checkpoints(three, "run").restore(LIKE)
    assert restored is not None
    assert "not in the format" in restored.refused[0]


def test_what_is_incomplete_is_ignored_and_removed(three):
    cut = three / "step_00000040"
    shutil.copytree(newest(three), cut)
    (cut / _files.MANIFEST).rename(cut / f"{_files.MANIFEST}.tmp")
    checkpoints = Checkpoints(three, "run", keep=9)
    assert checkpoints.steps() == [10, 20, 30]
    restored = checkpoints.restore(LIKE)
    assert restored is not None
    assert (restored.step, restored.refused) == (30, ())
    checkpoints.save(41, numbered(41), {})
    assert checkpoints.steps() == [10, 20, 30, 41]
    assert not cut.exists()


def test_removal_that_is_cut_short_leaves_an_incomplete_one(three, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: None)
        _files.remove_sealed(newest(three))
    assert Checkpoints(three, "run").steps() == [10, 20]
    assert len(list(three.iterdir())) == 3


def test_the_order_of_writing(tmp_path, monkeypatch):
    """Everything is on the disk before the manifest gets its name."""
    events: list[tuple[str, Path]] = []
    sync, rename = _files.sync, Path.rename
    monkeypatch.setattr(_files, "sync", lambda path: (events.append(("sync", path)), sync(path)))
    monkeypatch.setattr(
        Path, "rename", lambda path, to: (events.append(("rename", path)), rename(path, to))
    )
    Checkpoints(tmp_path / "new", "run").save(1, numbered(1), {})
    (checkpoint,) = (tmp_path / "new").iterdir()
    named = events.index(("rename", checkpoint / f"{_files.MANIFEST}.tmp"))
    before = {path for kind, path in events[:named] if kind == "sync"}
    folders = [path for path in checkpoint.rglob("*") if path.is_dir()]
    sealed = checkpoint / _files.MANIFEST
    assert before >= {tmp_path, tmp_path / "new", checkpoint, *folders, *files_of(checkpoint)} - {
        sealed
    }
    assert checkpoint / f"{_files.MANIFEST}.tmp" in before
    assert ("sync", checkpoint) in events[named + 1 :]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"step": -1}, ValueError, "step = -1: expected an integer >= 0"),
        ({"state": {"a": 3}}, TypeError, r"leaf \['a'\] = 3: expected an array"),
        ({"state": {"a": np.array(["x"])}}, TypeError, r"leaf \['a'\]: expected numbers"),
        ({"meta": {"a": object()}}, TypeError, "not JSON serializable"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_the_disk_is_touched(
    tmp_path, arguments, error, message
):
    with pytest.raises(error, match=message):
        Checkpoints(tmp_path / "new", "run").save(
            **{"step": 1, "state": {}, "meta": {}, **arguments}
        )
    assert not (tmp_path / "new").exists()


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match="identity = ''"):
        Checkpoints(tmp_path, "")
    with pytest.raises(ValueError, match="keep = 1: expected an integer >= 2"):
        Checkpoints(tmp_path, "run", keep=1)


def test_the_manifest_is_plain_to_read(written):
    content = json.loads((newest(written) / _files.MANIFEST).read_text().splitlines()[0])
    assert content["identity"] == "run"
    assert content["leaves"] == {"['t']": "int32[]", "['w']": "float32[4, 3]"}
