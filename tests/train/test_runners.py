"""Where a program runs does not matter: device, members, mesh and host take the same steps.

The noise on a parameter is about 0.03 a step here. Tolerances of about 1e-5 are those of float32
sums in another order: other noise, or one example more or less, is hundreds of times as far.
"""

import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dpjax.gradients import per_example
from dpjax.models.parameters import flat
from dpjax.train import Experiment, build_program, build_runner, feed, mesh, train, training
from dpjax.train.checkpoint import Checkpoints
from dpjax.train.config import RunConfig
from dpjax.train.feed import DeviceRunner, HostRunner, examples_of, stacked
from dpjax.train.folder import member_key
from dpjax.train.mesh import Layout
from dpjax.train.progress import Progress
from tests.marks import some
from tests.train.small import N, experiment, images, program

DEVICES, STEPS = 8, 6
KEY = jax.random.key(3)
DATA = images()
TRAIN, TEST = examples_of(DATA.train), examples_of(DATA.test)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

COMPILED: list[float] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: (
        COMPILED.append(seconds) if name.endswith("backend_compile_duration") else None
    )
)

METHODS = {
    "dp_sgd": {"name": "dp_sgd", "threshold": 0.7, "noise_multiplier": 1.0},
    "dc_sgd_e": {"name": "dc_sgd_e", "noise_multiplier": 1.0},
    "psasc_momentum": {"name": "psasc_momentum", "noise_multiplier": 1.0},
    "andrew": {"name": "andrew", "noise_multiplier": 1.0},
}
AUGMENTED = {"train__augment": ["shift", "flip"], "train__multiplicity": 2}
SAMPLINGS = {
    "poisson": {"batch_size": 12},
    "truncated": {"batch_size": 12, "sampling": "truncated", "max_size": 12},
    "fixed": {"batch_size": 12, "sampling": "fixed"},
    "full": {"sampling": "full"},
}


def of_method(name, dataset=DATA, **changes):
    """The small program with one of `METHODS`; batches of 30, which all of their noises allow.

    With "dp_sgd" the examples are augmented, too.
    """
    if name == "dp_sgd":
        changes = {**AUGMENTED, **changes}
    plain = experiment(train__batch_size=30, **changes).to_plain()
    return build_program(Experiment.from_plain({**plain, "method": METHODS[name]}), dataset)


def of_sampling(name):
    """The small program with one of `SAMPLINGS`."""
    plain = experiment(privacy__accountant="pld" if name == "truncated" else "rdp").to_plain()
    plain["train"] = {"steps": 3, "chunk": 5, **SAMPLINGS[name]}
    return build_program(Experiment.from_plain(plain), DATA)


PLAIN = cache(of_method)
INITS = {}


def begun(own, key=KEY):
    """Returns the state before the first step; one program's `init` is compiled once."""
    _, init = INITS.setdefault(id(own), (own, jax.jit(own.init)))
    return init(key)


def on_device(own, data=DATA):
    return DeviceRunner(own, examples_of(data.train), examples_of(data.test), STEPS)


def on_mesh(own, data=DATA):
    if jax.device_count() < DEVICES:
        pytest.skip(f"needs {DEVICES} devices")
    arrays = examples_of(data.train), examples_of(data.test)
    return DeviceRunner(own, *arrays, STEPS, Layout.of(RunConfig(mesh={"data": DEVICES})))


def on_members(own):
    return DeviceRunner(own, TRAIN, TEST, STEPS, members=True)


def on_host(own, train=DATA.train):
    return HostRunner(own, train, TEST)


@cache
def runner_of(place, name):
    """Returns a runner of the plain program of a method, compiled once for all tests."""
    return place(PLAIN(name))


@cache
def of_one_device(name, seed=3):
    """Returns six steps on one device: the state, and what was released."""
    own = PLAIN(name)
    return runner_of(on_device, name).advance(begun(own, jax.random.key(seed)), STEPS)


@contextmanager
def nothing_compiled():
    before = len(COMPILED)
    yield
    assert len(COMPILED) == before


def assert_close(a, b, **tolerance):
    for name, leaf in flat(b.params).items():
        np.testing.assert_allclose(flat(a.params)[name], leaf, **(tolerance or CLOSE))


def member(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


@pytest.fixture
def passes(monkeypatch):
    """Notes every pass over a chunk that is executed: (device, the rows that are real in it)."""
    found, engine = [], per_example.ENGINES["vmap"]

    def spy(loss_fn, params, chunk, key):
        axes = jax.sharding.get_abstract_mesh().manual_axes
        device = jax.lax.axis_index("data") if axes else 0

        def note(device, row, real):
            found.append((int(device), tuple(np.asarray(row)[np.asarray(real)].tolist())))

        jax.debug.callback(note, device, chunk.examples.row, chunk.real)
        return engine(loss_fn, params, chunk, key)

    monkeypatch.setitem(per_example.ENGINES, "vmap", spy)
    return found


def rows_by_step(runner, state, passes, steps=3):
    """Returns the rows that each step takes, and the state at the end."""
    batches = []
    for _ in range(steps):
        passes.clear()
        state, _ = runner.advance(state, 1)
        jax.block_until_ready(state)
        jax.effects_barrier()
        batches.append(sorted(row for _, rows in passes for row in rows))
    return batches, state


class TestMesh:
    @pytest.mark.parametrize("name", some(["dp_sgd", "dc_sgd_e"], ["dc_sgd_e"]))
    def test_eight_devices_take_the_steps_of_one_and_speak_once_a_step(self, name):
        """N = 90 is no multiple of 8: the last device holds padding, which no draw reaches."""
        own, mesh = PLAIN(name), runner_of(on_mesh, name)
        one, released = of_one_device(name)
        eight, numbers = mesh.advance(begun(own), STEPS)
        assert_close(eight, one)
        np.testing.assert_allclose(numbers.threshold, released.threshold, rtol=1e-5)
        assert eight.opt_state[0].key == one.opt_state[0].key

        state = jax.device_put(begun(own), eight.step.sharding)
        compiled = mesh._compiled.lower(state, mesh._data, jnp.int32(1)).compile().as_text()
        assert len(re.findall(r"= .*\ball-reduce(-start)?\(", compiled)) == 1
        for other in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
            assert other not in compiled

    @pytest.mark.slow
    def test_a_convolutional_network(self):
        data = images(size=(28, 28, 1))
        own = of_method("dc_sgd_e", data, model__name="small_cnn")
        one, _ = on_device(own, data).advance(begun(own), 2)
        eight, _ = on_mesh(own, data).advance(begun(own), 2)
        assert_close(eight, one)

    def test_rows_of_other_devices_are_refused(self):
        """A device that would read row numbers of the whole data set as its own."""
        own = PLAIN("dp_sgd")
        wrong = replace(own, axis=None)
        with pytest.raises(ValueError, match="data has 12 rows: expected the 90 that Poisson"):
            self._lifted(wrong).advance(begun(own), 1)

    def _lifted(self, wrong):
        mesh = on_mesh(PLAIN("dp_sgd"))
        advance = jax.shard_map(
            lambda state, data, n: wrong.advance(state, data, n, STEPS),
            mesh=mesh._layout.mesh,
            in_specs=(P(), P("data"), P()),
            out_specs=P(),
        )
        mesh._compiled = jax.jit(advance)
        return mesh

    def test_each_device_loops_over_its_own_chunks(self, passes):
        own = of_method("dp_sgd", train__chunk=2)
        mesh, state = on_mesh(own), begun(own)
        held = -(-N // DEVICES)
        for _ in range(3):
            batch = own.draw(state).rows()
            local = np.bincount(batch // held, minlength=DEVICES)
            passes.clear()
            state, _ = mesh.advance(state, 1)
            jax.block_until_ready(state)
            jax.effects_barrier()
            taken = Counter(device for device, _ in passes)
            assert [taken[d] for d in range(DEVICES)] == (-(-local // 2)).tolist()
            assert len(set(taken.values())) > 1  # no device goes through another's padding
            assert sorted(row for _, rows in passes for row in rows) == batch.tolist()
            assert all(row // held == device for device, rows in passes for row in rows)

    @pytest.mark.parametrize(
        "axes", [["data", "model"], pytest.param(["", "model"], marks=pytest.mark.slow)]
    )
    def test_parameters_that_are_split_are_those_of_one_device(self, axes):
        """Clipping sees the whole gradient, and noise is that of the whole leaf.

        Its scale is enlarged for the rounding of sums, by 4e-5: few numbers get to the next point
        of the noise's grid, whose unit is 2^-5, over 12 examples at a rate of 0.5.
        """
        if jax.device_count() < DEVICES:
            pytest.skip(f"needs {DEVICES} devices")
        own = program(model__name="mlp", model__hidden=16)
        state = begun(own)
        one, _ = on_device(own).advance(state, STEPS)
        run = RunConfig(mesh={"data": 4, "model": 2}, sharding={"dense/0/kernel": axes})
        runner = DeviceRunner(own, TRAIN, TEST, STEPS, Layout.of(run))
        split, _ = runner.advance(state, STEPS)
        found, expected = (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])
            for state in (split, one)
        )
        apart = np.abs(found - expected)
        moved = apart > 1e-5
        assert np.mean(moved) < 0.01
        np.testing.assert_allclose(apart[moved], 2.0**-5 / 12 * 0.5, rtol=0.01)
        kernel = split.params["dense"]["0"]["kernel"]
        part = (9, 8) if axes[0] else (36, 8)
        assert kernel.sharding.spec == P(*(axis or None for axis in axes))
        assert kernel.addressable_data(0).shape == part
        # The loop over the steps carries the part: the whole is there while a step needs it.
        lowered = runner._compiled.lower(runner._layout.placed(state), runner._data, jnp.int32(1))
        entry = lowered.compile().as_text().split("ENTRY ")[1]
        (carried,) = re.findall(r"= \((.*)\) while\(", entry)
        assert f"f32[{part[0]},{part[1]}]" in carried
        assert "f32[36,16]" not in carried
        assert split.params["dense"]["1"]["kernel"].sharding.is_fully_replicated
        assert float(runner.evaluate(split).accuracy) == float(
            on_device(own).evaluate(one).accuracy
        )

    def test_a_rule_that_cannot_hold_is_refused_by_its_name(self, tmp_path):
        asked = experiment(
            model__name="mlp",
            model__hidden=16,
            run__mesh={"data": 4, "model": 2},
            run__sharding={"dense/*/kernel": ["", "model"]},
        )
        message = r"run.sharding.dense/\*/kernel = .*params/dense/1/kernel has the shape \(16, 3\)"
        with pytest.raises(ValueError, match=message):
            train(asked, DATA, tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_more_devices_than_there_are(self):
        with pytest.raises(ValueError, match=r"run.mesh = .*99.*: expected at most \d+"):
            build_runner(PLAIN("dp_sgd"), DATA, RunConfig(mesh={"data": 99}))


class TestHost:
    @pytest.mark.parametrize("name", some(METHODS, ["dp_sgd", "dc_sgd_e"]))
    def test_the_host_feeds_the_steps_of_the_device(self, name):
        one, released = of_one_device(name)
        fed, numbers = runner_of(on_host, name).advance(begun(PLAIN(name)), STEPS)
        assert_close(fed, one)
        assert int(fed.step) == STEPS
        np.testing.assert_allclose(numbers.threshold, released.threshold, rtol=1e-5)

    def test_data_on_the_disk(self, tmp_path):
        mapped = np.lib.format.open_memmap(
            tmp_path / "x.npy", mode="w+", dtype=TRAIN.x.dtype, shape=TRAIN.x.shape
        )
        mapped[:] = TRAIN.x
        own = PLAIN("dp_sgd")
        runner = on_host(own, DATA.train._replace(x=mapped))
        assert isinstance(runner._data.x, np.memmap)
        fed, _ = runner.advance(begun(own), STEPS)
        assert_close(fed, of_one_device("dp_sgd")[0])

    def test_a_method_that_needs_its_batch_at_once_is_refused(self):
        plain = experiment(train__sampling="full").to_plain()
        plain["method"] = {"name": "psasc_momentum_full_batch", "noise_multiplier": 1.0}
        own = build_program(Experiment.from_plain(plain), DATA)
        for place, field in ((on_host, "run.data = 'host'"), (on_mesh, "run.mesh = .*8.*")):
            with pytest.raises(ValueError, match=f"{field} with method psasc.* its full batch"):
                place(own)

    def test_auto_asks_for_the_memory(self, monkeypatch):
        own, size = PLAIN("dp_sgd"), sum(leaf.nbytes for leaf in TRAIN)
        monkeypatch.setattr(feed, "device_memory", lambda: 2 * size)
        assert isinstance(build_runner(own, DATA, RunConfig()), DeviceRunner)
        monkeypatch.setattr(feed, "device_memory", lambda: 2 * size - 2)
        assert isinstance(build_runner(own, DATA, RunConfig()), HostRunner)
        assert isinstance(build_runner(own, DATA, RunConfig(data="device")), DeviceRunner)
        monkeypatch.undo()
        assert mesh.device_memory() > 2**28
        assert isinstance(build_runner(own, DATA, RunConfig(data="host")), HostRunner)


@pytest.mark.parametrize("sampling", some(SAMPLINGS, ["poisson", "truncated"]))
def test_every_sampling_gives_device_and_host_the_same_batches(sampling, passes):
    own = of_sampling(sampling)
    by_device, one = rows_by_step(on_device(own), begun(own), passes)
    by_host, fed = rows_by_step(on_host(own), begun(own), passes)
    assert by_device == by_host
    assert all(len(set(batch)) == len(batch) for batch in by_device)
    sizes = [len(batch) for batch in by_device]
    assert {
        "poisson": len(set(sizes)) > 1,
        "truncated": max(sizes) <= 12,
        "fixed": set(sizes) == {12},
        "full": set(sizes) == {N},
    }[sampling]
    assert_close(fed, one)


VARIED = ("optimizer.learning_rate", "method.threshold")
VALUES = ((0.5, 0.7), (0.1, 0.2))
CHANGES = [{"optimizer__learning_rate": rate, "method__threshold": c} for rate, c in VALUES]


@cache
def varied(noise_multiplier):
    """Returns two programs with learning rates and thresholds of their own, and their runner."""
    noise = {"method__noise_multiplier": noise_multiplier}
    own = [program(varied=VARIED, **noise, **change) for change in CHANGES]
    return own, on_members(own[0])


class TestMembers:
    def test_seeds_in_one_program_are_the_single_runs(self):
        own, members, seeds = PLAIN("dc_sgd_e"), runner_of(on_members, "dc_sgd_e"), range(3)
        states = stacked([begun(own, jax.random.key(seed)) for seed in seeds])
        together, released = members.advance(states, STEPS)
        scores = members.evaluate(together)
        assert len({key.tobytes() for key in jax.random.key_data(together.opt_state[0].key)}) == 3
        for seed in seeds:
            alone, numbers = of_one_device("dc_sgd_e", seed)
            assert_close(member(together, seed), alone)
            np.testing.assert_allclose(released.threshold[seed], numbers.threshold, rtol=1e-5)
            loss = float(runner_of(on_device, "dc_sgd_e").evaluate(alone).loss)
            assert float(scores.loss[seed]) == pytest.approx(loss, rel=1e-5)
        batches = [tuple(own.draw(member(states, seed)).rows()) for seed in seeds]
        assert len(set(batches)) == 3

    def test_varied_numbers_in_one_program_are_the_single_runs(self):
        own, runner = varied(1.0)
        keys = list(jax.random.split(KEY))
        states = stacked([begun(p, key) for p, key in zip(own, keys, strict=True)])
        together, _ = runner.advance(states, STEPS)
        for i, change in enumerate(CHANGES):
            alone, _ = on_device(program(**change)).advance(
                member(states, i)._replace(vary={}), STEPS
            )
            assert_close(member(together, i), alone)

    def test_each_member_has_noise_of_its_own(self):
        own, runner = varied(1.0)
        roots = [member_key(KEY, p.plan.experiment.identity, 0) for p in own]
        first, second = self._noises(own, runner, roots)
        assert abs(np.mean(first * second)) < 5 / np.sqrt(first.size)
        same, shared = self._noises(own, runner, [KEY, KEY])
        np.testing.assert_allclose(same, shared, atol=0.1)  # the rejecting arm, on two grids
        for noise in (first, second, same):
            assert abs(np.mean(noise**2) - 1) < 5 * np.sqrt(2 / noise.size)

    def _noises(self, own, runner, keys):
        """Returns the noise of each member: what the same step without noise differs by."""
        states = stacked([begun(p, key) for p, key in zip(own, keys, strict=True)])
        noisy, _ = runner.advance(states, 1)
        clean, _ = varied(0.0)[1].advance(states, 1)
        moved = jax.tree.map(lambda a, b: np.asarray(a) - b, noisy.params, clean.params)
        return [
            np.concatenate([np.ravel(leaf[i]) * 12 / rate / c for leaf in jax.tree.leaves(moved)])
            for i, (rate, c) in enumerate(VALUES)
        ]


@pytest.fixture(scope="class")
def whole(tmp_path_factory):
    """Two seeds trained by `train`, to the end."""
    return train(TestTraining.SEEDS, DATA, tmp_path_factory.mktemp("whole") / "run")


class TestTraining:
    """`train` as a person calls it, over several members or devices."""

    ASKED = experiment(run__seed=1, run__evaluate_every=2, run__checkpoint_every=2)
    SEEDS = ASKED.set("run.seeds", 2)

    def test_seeds_go_on_in_step_after_an_interruption(self, whole, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "save", self._failing(at=4, nth=2))
            with pytest.raises(OSError, match="disk full"):
                train(self.SEEDS, DATA, tmp_path)
        # The first has a checkpoint at step 4, the second does not.
        begun_at = []
        progress = Progress()
        progress.begin = lambda plan, step: begun_at.append(step)
        again = train(self.SEEDS, DATA, tmp_path, resume=True, progress=lambda label: progress)
        assert begun_at == [2]
        assert [result.folder.path.name for result in again] == ["seed-0", "seed-1"]
        for a, b in zip(whole, again, strict=True):
            leaves = zip(*map(jax.tree.leaves, (a.state.params, b.state.params)), strict=True)
            assert all(np.array_equal(x, y) for x, y in leaves)
            for file in ("ledger.json", "steps.csv", "released.jsonl"):
                assert (a.folder.path / file).read_bytes() == (b.folder.path / file).read_bytes()

    def _failing(self, at, nth):
        save, calls = Checkpoints.save, []

        def failing(own, step, state, meta):
            calls.extend([1] * (step == at))
            if step == at and len(calls) == nth:
                raise OSError("disk full")
            save(own, step, state, meta)

        return failing

    @pytest.mark.parametrize("needed_by", [training, pytest.param(mesh, marks=pytest.mark.slow)])
    def test_without_the_memory_one_after_another(self, needed_by, whole, tmp_path, monkeypatch):
        """Without that of the program, two programs; without that of the data, fed by the host."""
        monkeypatch.setattr(needed_by, "device_memory", lambda: 0)
        said = []
        one_by_one = train(self.SEEDS, DATA, tmp_path, say=said.append)
        if needed_by is training:
            assert re.fullmatch(r"2 runs together need .* GiB: one after another", said[-1])
        for a, b in zip(whole, one_by_one, strict=True):
            assert_close(a.state, b.state)
            assert a.epsilon == b.epsilon

    @pytest.mark.parametrize("change", [("run.mesh", {"data": 8}), ("run.data", "host")])
    def test_where_it_runs_is_no_part_of_what_runs(self, change, whole, tmp_path):
        """The keys do not depend on `run`: one run is the first of two seeds."""
        [result] = train(self.ASKED.set(*change), DATA, tmp_path / "run")
        assert_close(result.state, whole[0].state)
        assert result.accuracy == pytest.approx(whole[0].accuracy)


class TestOneCompilation:
    """Batches of any size and calls of any number of steps: after the first, nothing compiles."""

    @pytest.mark.parametrize("place", [on_device, on_mesh, on_host, on_members])
    def test_after_the_first_call(self, place):
        own, runner = PLAIN("dc_sgd_e"), runner_of(place, "dc_sgd_e")
        state = begun(own)
        if place is on_members:
            state = stacked([begun(own, jax.random.key(seed)) for seed in range(3)])
        state, _ = runner.advance(state, 1)
        runner.evaluate(state)
        with nothing_compiled():
            for steps in (1, 3, 2, 6, 5):
                state, _ = runner.advance(state, steps)
                runner.evaluate(state)
        assert np.all(np.asarray(state.step) == 18)

    def test_asking_for_the_memory_compiles_for_the_run(self):
        own = program()
        runner, state = on_device(own), begun(own)
        assert runner.temporary_bytes(state) > 0
        with nothing_compiled():
            runner.advance(state, 1)

    def test_a_compilation_would_be_noticed(self):
        """The rejecting arm: what a loop over ragged batches does."""
        with pytest.raises(AssertionError), nothing_compiled():
            jax.jit(jnp.sin)(jnp.ones(DEVICES * N + 1))
