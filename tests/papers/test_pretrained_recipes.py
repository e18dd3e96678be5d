"""Recipes that start from published weights: the published names, sizes and hyper-parameters."""

import pytest

from dpjax.data import source_of
from dpjax.papers import cell_named, recipe_of
from dpjax.papers.agenda import why_not_here
from dpjax.papers.prerequisites import Findings
from dpjax.papers.running import nfnet_path, pretrained_path


def experiment_of(name):
    return recipe_of(cell_named(name), Findings()).experiment


@pytest.mark.parametrize(
    ("data", "batch", "epochs"), [("sst2", 1000, 3), ("qnli", 2000, 6), ("qqp", 6000, 18)]
)
def test_roberta_is_fine_tuned_as_in_li_et_al(data, batch, epochs):
    """Their table: batches and epochs by the size of the data, delta 1 / 2N, 256 tokens."""
    for table, size in (("2", "base"), ("3", "large")):
        found = experiment_of(f"auto-clip/{table}/{data}/roberta-{size}/3/auto-s")
        assert found.model.pretrained == f"roberta-{size}"
        assert found.model.trainable == ()
        assert (found.train.batch_size, found.train.epochs) == (batch, epochs)
        assert found.data.length == 256
        assert found.privacy.delta == pytest.approx(1 / (2 * source_of(data).examples[0]))
        assert found.optimizer.learning_rate["init_value"] == 5e-4


def test_a_directory_is_found_by_its_published_name_or_given(tmp_path):
    recipe = recipe_of(cell_named("auto-clip/2/sst2/roberta-base/3/auto-s"), Findings())
    nowhere = str(tmp_path / "data")
    assert why_not_here(recipe, nowhere).startswith("needs pre-trained RoBERTa weights; sst2: no")
    folder = tmp_path / "hub" / "roberta-base"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for given in (folder, folder.parent):
        assert pretrained_path("roberta-base", str(given)) == folder
        assert why_not_here(recipe, nowhere, str(given)).startswith("sst2: no")
    assert pretrained_path("roberta-base", str(tmp_path)) is None


def test_an_nfnet_is_found_by_its_published_file(tmp_path):
    recipe = recipe_of(cell_named("auto-dp/3/cifar10/nfnet-f0-pretrained/2/sigma1.0134/dp-sgd"))
    nowhere = str(tmp_path / "data")
    needs = "needs pre-trained NFNet weights; cifar10: no"
    assert why_not_here(recipe, nowhere, str(tmp_path)).startswith(needs)
    for name in ("F0_haiku.npz", "dm_nfnet_f0.safetensors", "dm_nfnet_f0/model.safetensors"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        assert nfnet_path("nfnet_f0", str(tmp_path)) == path  # the last one comes first
        assert why_not_here(recipe, nowhere, str(tmp_path)).startswith("cifar10: no")
    assert nfnet_path("nfnet_f1", str(tmp_path)) is None
