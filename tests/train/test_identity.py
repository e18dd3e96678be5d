"""What a run is tied to: its experiment, what draws its bits, its data; and where it may go on."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jaxlib.version
import numpy as np
import pytest

import dpjax
from dpjax import noise
from dpjax.data import Split
from dpjax.models.parameters import flat
from dpjax.train import Run, RunFolder, export, feed, train
from dpjax.train import folder as run_folder
from dpjax.train.folder import environment
from tests.train.small import Killed, experiment, images, stop_after

DATA = images()
RUN = {"run__seed": 5, "run__evaluate_every": 2, "run__checkpoint_every": 3, "train__steps": 8}


def run(folder, data=DATA, *, kill=None, resume=False, rekey=False, **changes):
    """Trains; `kill` ends it after so many steps, as a kill would."""
    asked = experiment(**{**RUN, **changes})
    if kill is None:
        return train(asked, data, folder, resume=resume, rekey=rekey)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, kill)
        with pytest.raises(Killed):
            train(asked, data, folder, resume=resume, rekey=rekey)
    return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    (result,) = run(folder)
    return folder, result


def files(folder):
    return {f: f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


# What changes, as the refusal names it, and how.
ELSEWHERE = {
    "dpjax": lambda patch: patch.setattr(dpjax, "__version__", "0.0.1"),
    "jax": lambda patch: patch.setattr(jax, "__version__", "0.0.1"),
    "jaxlib": lambda patch: patch.setattr(jaxlib.version, "__version__", "0.0.1"),
    "platform": lambda patch: patch.setattr(jax, "default_backend", lambda: "abacus"),
    "noise": lambda patch: patch.setattr(noise, "DEFINITION", "dice"),
    "device": lambda patch: patch.setattr(run_folder, "_cpu", lambda: "Z80"),
    "xla_flags": lambda patch: patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"),
}
FLAGS = {"threefry_partitionable": "jax_threefry_partitionable", "x64": "jax_enable_x64"}


class TestEnvironment:
    def test_it_is_kept_with_the_run(self, whole):
        kept = json.loads((whole[0] / "run.json").read_text())["environment"]
        assert kept["jax"] == jax.__version__
        assert kept["jaxlib"] == jaxlib.version.__version__
        assert kept["dpjax"] == dpjax.__version__
        assert kept["platform"] == "cpu"
        assert kept["noise"] == noise.DEFINITION

    @pytest.mark.parametrize("what", ELSEWHERE)
    def test_a_resume_under_another_is_refused_by_what_changed(self, tmp_path, monkeypatch, what):
        run(tmp_path / "run", kill=5)
        before = files(tmp_path / "run")
        ELSEWHERE[what](monkeypatch)
        with pytest.raises(ValueError, match=rf"run: {what} was '.*' and is '.*rekey=True"):
            run(tmp_path / "run", resume=True)
        assert files(tmp_path / "run") == before
        monkeypatch.undo()
        run(tmp_path / "run", resume=True)

    @pytest.mark.parametrize("name", FLAGS)
    def test_flags_that_change_draws_count(self, tmp_path, name):
        run(tmp_path / "run", kill=5)
        old = getattr(jax.config, FLAGS[name])
        jax.config.update(FLAGS[name], not old)
        try:
            with pytest.raises(ValueError, match=rf"{name} was {old} and is {not old}.*rekey=True"):
                run(tmp_path / "run", resume=True)
        finally:
            jax.config.update(FLAGS[name], old)

    def test_the_precision_of_matrix_products_counts(self, tmp_path):
        run(tmp_path / "run", kill=5)
        with jax.default_matmul_precision("bfloat16"):
            refusal = "matmul_precision was 'default' and is 'bfloat16'.*rekey=True"
            with pytest.raises(ValueError, match=refusal):
                run(tmp_path / "run", resume=True)

    def test_another_accelerator_of_the_same_platform_is_another(self, monkeypatch):
        kinds = []
        for kind in ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"):
            device = SimpleNamespace(platform="gpu", device_kind=kind)
            monkeypatch.setattr(jax, "devices", lambda device=device: [device])
            kinds.append(environment()["device"])
        assert kinds == ["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"]

    def test_a_cpu_is_its_model_and_its_instructions(self, monkeypatch):
        """Not its clock, which changes from one moment to the next."""
        told = "model : 17\nflags : sse avx {}\ncpu MHz : {}\n\nmodel : 99\n"
        found = []
        for words in (("avx512f", 2600), ("avx512f", 3100), ("", 2600)):
            text = told.format(*words)
            with monkeypatch.context() as patch:
                patch.setattr(Path, "exists", lambda path: True)
                patch.setattr(Path, "read_text", lambda path, text=text, **_: text)
                found.append(run_folder._cpu.__wrapped__())
        assert found[0] == found[1] != found[2]

    def test_the_number_of_host_devices_is_not_part_of_it(self, monkeypatch):
        before = environment()
        monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
        assert environment()["xla_flags"] == ""
        monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3 --xla_other=1")
        assert environment() == {**before, "xla_flags": "--xla_other=1"}

    def test_on_request_it_goes_on_with_new_keys_and_an_entry(self, tmp_path, monkeypatch):
        folder = RunFolder(tmp_path / "run")
        run(folder.path, kill=5)
        old = folder.identity()
        monkeypatch.setattr(jax, "__version__", "0.0.1")
        (result,) = run(folder.path, resume=True, rekey=True)
        new = folder.identity()
        assert new.lineage != old.lineage
        assert new.environment == environment() != old.environment
        # Announced up to 6, gone on from the checkpoint at 3: all of it counts.
        assert [(e.start, e.steps) for e in folder.read_ledger().entries] == [(0, 6), (3, 5)]
        assert result.epsilon == pytest.approx(result.ledger.epsilon(1e-3, "rdp"))
        run(folder.path, resume=True)  # it belongs to the new one from now on

    def test_a_run_at_its_end_draws_nothing(self, whole, tmp_path, monkeypatch):
        run(tmp_path / "run")
        monkeypatch.setattr(jax, "__version__", "0.0.1")
        for rekey in (False, True):
            (result,) = run(tmp_path / "run", resume=True, rekey=rekey)
            assert result.accuracy == whole[1].accuracy
        assert len(result.ledger.entries) == 1
        export(RunFolder(tmp_path / "run"), DATA, tmp_path / "out")

    def test_a_run_without_a_guarantee_is_not_sent_to_what_is_refused_next(
        self, tmp_path, monkeypatch
    ):
        changes = {"method__name": "auto_dp_sgd", "method__noise_multiplier": 1.0}
        run(tmp_path / "run", kill=5, **changes)
        monkeypatch.setattr(jax, "__version__", "0.0.1")
        with pytest.raises(ValueError, match=r"jax was .* and is '0.0.1': expected") as refusal:
            run(tmp_path / "run", resume=True, **changes)
        assert "rekey=True" not in str(refusal.value)

    def test_an_edited_one_is_of_no_use(self, tmp_path, monkeypatch):
        run(tmp_path / "run", kill=5)
        monkeypatch.setattr(jax, "__version__", "0.0.1")
        file = tmp_path / "run" / "run.json"
        plain = json.loads(file.read_text())
        plain["environment"]["jax"] = "0.0.1"
        file.write_text(json.dumps(plain))
        with pytest.raises(ValueError, match="it is of another run"):
            run(tmp_path / "run", resume=True)

    @pytest.mark.parametrize("bad", [None, 3, {}, {"jax": "1"}, {"jax": 1.5}])
    def test_one_that_is_none_is_refused(self, tmp_path, bad):
        run(tmp_path / "run", kill=0)
        file = tmp_path / "run" / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "environment": bad}))
        with pytest.raises(ValueError, match=r"run.json: expected what dpjax wrote"):
            run(tmp_path / "run", resume=True)


class TestData:
    def test_another_test_split_is_refused(self, tmp_path):
        run(tmp_path / "run", kill=5)
        x = DATA.test.x.copy()
        x[3, 0, 0] += 1
        changed = [Split(x, DATA.test.y), Split(DATA.test.x[1:], DATA.test.y[1:])]
        for test in changed:
            other = DATA.__class__(DATA.name, DATA.train, test, 3, DATA.pixels)
            for rekey in (False, True):
                with pytest.raises(ValueError, match="the test examples of stripes have changed"):
                    run(tmp_path / "run", other, resume=True, rekey=rekey)
        run(tmp_path / "run", resume=True)


GHOST = {"train__engine": "ghost", "method__threshold": 700.0, "train__chunk": 6}


class TestPlace:
    """Batches and noise do not depend on where a run goes on, sums only by rounding."""

    # Parameters are up to 0.42; noise moves each by about 0.03 a step. Measured: 3e-8 for eight
    # devices, 0 for the host, whose parts are the device's chunks.
    FIGURE = 1e-6

    @pytest.mark.parametrize("change", [{"run__mesh": {"data": 8}}, {"run__data": "host"}])
    def test_it_may_go_on_in_another(self, whole, tmp_path, change):
        for begun, gone_on in (({}, change), (change, {})):
            folder = tmp_path / f"run-{len(begun)}"
            run(folder, kill=5, **begun)
            (result,) = run(folder, resume=True, **gone_on)
            assert self.farthest(result.state, whole[1].state) < self.FIGURE
            assert result.state.opt_state[0].key == whole[1].state.opt_state[0].key
            assert result.ledger == whole[1].ledger
        # The rejecting arm: other noise from the checkpoint on.
        (other,) = run(folder, resume=True, rekey=True, train__steps=9)
        assert self.farthest(other.state, whole[1].state) > 1000 * self.FIGURE

    @pytest.mark.parametrize("change", [{"run__mesh": {"data": 8}}, {"run__data": "host"}])
    def test_the_noise_keeps_its_scale(self, tmp_path, monkeypatch, change):
        """Ghost's figure enlarges it: the same wherever the run goes on, whatever the batches."""
        monkeypatch.setattr(feed, "_MOST_BYTES", 1)  # on the host, a part is a chunk
        run(tmp_path / "run", kill=5, **GHOST)
        run(tmp_path / "run", resume=True, **GHOST, **change)
        steps = RunFolder(tmp_path / "run").steps()
        assert len(steps["bound"]) == 8
        assert len(set(steps["bound"])) == 1
        assert set(steps["rerounding"]) == {RunFolder(tmp_path / "run").identity().rerounding}
        assert steps["bound"][0] == np.float32(700 * (1 + np.float32(steps["rerounding"][0])))
        assert steps["rerounding"][0] > 1e-6

    def test_where_the_noise_would_have_another_scale_is_refused(self, tmp_path):
        """The difference of two releases of one step would otherwise show their noise."""
        sharded = {"run__mesh": {"data": 8}, "run__sharding": {".*": []}}
        for begun, gone_on in ((GHOST, sharded), ({**GHOST, **sharded}, {})):
            folder = tmp_path / f"run-{len(begun)}"
            run(folder, kill=2, **begun)  # before the first checkpoint after the start
            RunFolder(folder).cut(0)
            kept = files(folder)
            with pytest.raises(ValueError, match=r"expected run.mesh and run.sharding as they"):
                run(folder, resume=True, **GHOST, **gone_on)
            assert {k: v for k, v in files(folder).items() if k in kept} == kept
            run(folder, resume=True, **begun)

    def farthest(self, a, b):
        a, b = flat(a.params), flat(b.params)
        return max(float(np.abs(np.asarray(a[name]) - np.asarray(b[name])).max()) for name in b)


class TestNothingThere:
    @pytest.mark.parametrize("made", [False, True])
    def test_a_resume_is_refused_by_the_folder(self, tmp_path, made):
        folder = tmp_path / "new"
        if made:
            folder.mkdir()
        for more in ({}, {"rekey": True}, {"run__seeds": 2}):
            with pytest.raises(ValueError, match="new holds no run: expected one to resume"):
                run(folder, resume=True, **more)
        assert list(folder.glob("*")) == []
        assert folder.exists() == made

    def test_of_several_the_missing_ones_were_begun_with_the_others(self, tmp_path, monkeypatch):
        """A kill between the first and the second of two seeds: both go on."""
        begin = Run.begin

        def killed(*arguments):
            if arguments[4] == 1:
                raise Killed
            return begin(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "begin", killed)
            with pytest.raises(Killed):
                run(tmp_path / "runs", run__seeds=2)
        assert [f.parent.name for f in tmp_path.glob("runs/*/run.json")] == ["seed-0"]
        with pytest.raises(ValueError, match=r"runs holds 2 runs that were begun together.* not 3"):
            run(tmp_path / "runs", resume=True, run__seeds=3)
        results = run(tmp_path / "runs", resume=True, run__seeds=2)
        assert [int(result.state.step) for result in results] == [8, 8]
