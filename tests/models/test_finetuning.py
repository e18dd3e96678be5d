"""What is trained of a pre-trained network: blocks, biases, LoRA; a frozen, cached beginning."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import models
from dpjax.models.parameters import flat
from dpjax.models.transformer import Memory, attend
from tests.models.helpers import fast_jit, random_params

SIZE = {"layers": 3, "width": 8, "heads": 2, "hidden": 12, "positions": 10}
HEAD = ("pooler", "classifier")


def encoder(length=9, **options):
    return models.build("bert", (length,), 3, 7, **SIZE, **options)


def batch(rows=4, length=9):
    tokens = np.random.default_rng(0).integers(1, 7, (rows, length)).astype(np.int32)
    tokens[1, 4:] = tokens[2, 1:] = 0
    return jnp.asarray(tokens), jnp.arange(rows) % 3


def clipped(network, trained, frozen, examples, engine):
    """The norms and the clipped sum of the trained parameters' gradients."""

    def loss(trained, example):
        return network.loss(models.Parameters(trained, frozen).merged(), *example)

    def program(trained):
        grads = dpjax.per_example_grads(loss, engine=engine)(trained, examples)
        return grads.norms, grads.weighted_sum(jnp.minimum(1.0, 0.1 / grads.norms))

    return fast_jit(program)(trained)


def test_patterns_choose_parameters():
    params = random_params(encoder())
    last = models.split(params, ["blocks/-1", *HEAD])
    assert last.trainable["blocks"].keys() == {"2"}
    assert set(flat(last.merged())) == set(flat(params))
    top = models.split(params, ["blocks/-2", "blocks/-1"]).trainable
    assert top["blocks"].keys() == {"1", "2"}
    bias = flat(models.split(params, ["*/bias", "classifier"]).trainable)
    assert bias.keys() == {p for p in flat(params) if p.endswith("bias")} | {"classifier/kernel"}
    assert models.split(params, []).frozen == {}
    for wrong in ("blocks/-4", "*/scales", "clasifier"):
        with pytest.raises(ValueError, match="no such parameter"):
            models.split(params, ["blocks/-1", wrong])


def test_blocks_are_counted_as_numbers():
    params = {"blocks": {str(i): {"bias": i} for i in range(12)}}
    assert models.split(params, ["blocks/-1"]).trainable == {"blocks": {"11": {"bias": 11}}}


def test_lora_is_a_merged_kernel_in_every_engine():
    """Values and gradients against the merged network, where the chain rule gives A's and B's."""
    plain, lora = encoder(), models.LoRA(rank=2, alpha=3.0)
    network = models.add_lora(plain, lora)
    params = random_params(network)
    merged = models.merge_lora(params, lora)
    tokens, labels = batch()
    trained, frozen = models.split(params, ["*/lora_*", "classifier"])
    assert len(flat(trained)) == 3 * 2 * 2 + 2

    def through_the_kernel(params):
        return plain.loss(models.merge_lora(params, lora), tokens[0], labels[0])

    expected = fast_jit(jax.grad(through_the_kernel))(params)
    both = fast_jit(
        lambda: [n.apply(p, tokens[0]) for n, p in ((plain, merged), (network, params))]
    )
    np.testing.assert_allclose(*both(), atol=1e-5)
    one = tokens[:1], labels[:1]
    found = {e: clipped(network, trained, frozen, one, e) for e in ("ghost", "vmap")}
    wanted = {path: flat(expected)[path] for path in flat(trained)}
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in wanted.values()))
    for norms, total in found.values():
        np.testing.assert_allclose(norms, [norm], rtol=1e-4)
        for path, leaf in flat(total).items():
            np.testing.assert_allclose(leaf, wanted[path] * min(1, 0.1 / norm), atol=1e-5)


def test_lora_starts_as_the_network_and_forms_no_kernel():
    network = models.add_lora(encoder(), models.LoRA(rank=2))
    params = network.init(jax.random.key(0))
    block = params["blocks"]["0"]
    assert not np.any(block["query"]["lora_b"])
    assert np.any(block["value"]["lora_a"])
    assert "lora_a" not in block["key"]
    trained, frozen = models.split(params, ["*/lora_*"])
    tokens, labels = batch()

    def loss(trained, example):
        return network.loss(models.Parameters(trained, frozen).merged(), *example)

    assert dpjax.explain(loss, trained, (tokens[0], labels[0])).fallbacks == ()
    with pytest.raises(ValueError, match="kernels: 'qeury': did you mean 'query'"):
        models.add_lora(encoder(), models.LoRA(kernels=("qeury",)))
    with pytest.raises(TypeError, match="kernels = 'query': expected names of layers"):
        models.LoRA(kernels="query")
    with pytest.raises(ValueError, match="rank = 0: expected"):
        models.LoRA(rank=0)


def test_clipped_gradients_from_cached_states_are_the_same(tmp_path):
    network = encoder()
    params = random_params(network)
    examples = batch()
    patterns = ["blocks/-1", *HEAD]
    block = models.first_trained_block(params, patterns)
    assert block == 2
    halves = models.cut(network, params, block)
    states = models.cache_states(
        halves.prefix, halves.prefix_params, np.asarray(examples[0]), tmp_path
    )
    assert (len(states), states.shape) == (4, (4, 9, 8))
    assert states.nbytes == (9 + 4 + 1 + 9) * 8 * 4  # padding is not stored
    rows = states.__getitems__([0, 1, 2, 3])
    assert not rows[1, 4:].any()
    np.testing.assert_array_equal(states[2], rows[2])
    whole = clipped(network, *models.split(params, patterns), examples, "ghost")
    trained, frozen = models.split(halves.suffix_params, patterns)
    assert frozen == {}
    from_states = clipped(halves.suffix, trained, frozen, (jnp.asarray(rows), examples[1]), "ghost")
    np.testing.assert_allclose(from_states[0], whole[0], rtol=1e-5)
    for path, leaf in flat(from_states[1]).items():
        np.testing.assert_allclose(leaf, flat(whole[1])[path], atol=1e-6, err_msg=path)


def test_states_are_computed_once_and_named_by_all_they_depend_on(tmp_path, monkeypatch):
    network = encoder()
    params = random_params(network)
    halves = models.cut(network, params, 0)
    tokens = np.asarray(batch()[0])

    def cached(params=halves.prefix_params, tokens=tokens, **options):
        return models.cache_states(halves.prefix, params, tokens, tmp_path, **options)

    first = cached()
    with monkeypatch.context() as patched:
        patched.setattr("dpjax.models.frozen_prefix._compute", None)  # would be called
        assert cached().file == first.file
    other = jax.tree.map(lambda leaf: leaf * 2, halves.prefix_params)
    files = {first.file, cached(other).file, cached(tokens=tokens[::-1].copy()).file}
    half = cached(dtype="float16")
    assert len({*files, half.file}) == 4
    assert half.nbytes * 2 == first.nbytes
    np.testing.assert_allclose(half[0], first[0], atol=2e-3)
    with pytest.raises(
        ValueError, match="limit = 100 bytes: expected at least 736, what 23 tokens"
    ):
        cached(limit=100)
    inside = tokens.copy()
    inside[0, 3] = 0
    with pytest.raises(ValueError, match="expected padding after a text only"):
        cached(tokens=inside)
    with pytest.raises(ValueError, match="tokens: 7: expected 0 to 6, the network's vocabulary"):
        cached(tokens=tokens + (tokens == 6))
    with pytest.raises(ValueError, match="expected frozen embeddings"):
        models.first_trained_block(params, ["embeddings", "classifier"])
    with pytest.raises(ValueError, match="block = 4: expected at most the 3 blocks"):
        models.cut(network, params, 4)


def test_interrupted_caching_leaves_nothing_behind(tmp_path, monkeypatch):
    network = encoder()
    params = random_params(network)
    halves = models.cut(network, params, 0)
    tokens = np.asarray(batch()[0])

    def cached():
        return models.cache_states(halves.prefix, halves.prefix_params, tokens, tmp_path)

    seen = []
    with monkeypatch.context() as patched:

        def interrupted(*_):
            seen.extend(tmp_path.iterdir())
            raise KeyboardInterrupt

        patched.setattr("dpjax.models.frozen_prefix._compute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cached()
    assert list(tmp_path.iterdir()) == []
    # A killed process cannot tidy up: the next one does, but leaves those alone that still run.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own = f".{os.getpid()}.part"
    assert [file.name.endswith(own) for file in seen] == [True]
    unnamed = seen[0].name.removesuffix(own)
    abandoned = tmp_path / f"{unnamed}.{ended.pid}.part"
    kept = [tmp_path / f"{unnamed}.{os.getppid()}.part", tmp_path / f"abc.there.{ended.pid}.part"]
    for file in (abandoned, *kept):
        file.write_bytes(b"")
    assert set(tmp_path.iterdir()) == {*kept, abandoned}
    finished = cached().file
    assert set(tmp_path.iterdir()) == {*kept, finished}


def test_halves_join_and_states_become_an_array(tmp_path):
    network = encoder()
    params = random_params(network)
    halves = models.cut(network, params, 2)
    jax.tree.map(np.testing.assert_array_equal, halves.joined(halves.suffix_params), params)
    moved = jax.tree.map(lambda leaf: leaf + 1, halves.suffix_params)
    joined = halves.joined(moved)
    before, after = (flat(tree) for tree in (params, joined))
    for path in before:
        trained = path.startswith(("blocks/2/", *HEAD))
        np.testing.assert_array_equal(after[path], before[path] + trained, err_msg=path)
    tokens = np.asarray(batch()[0])
    states = models.cache_states(halves.prefix, halves.prefix_params, tokens, tmp_path)
    expected = fast_jit(jax.vmap(halves.prefix.apply, (None, 0)))(halves.prefix_params, tokens)
    np.testing.assert_allclose(np.asarray(states), expected, atol=1e-6)
    assert np.asarray(states, np.float64).dtype == np.float64
    for row in range(4):
        own = states.tokens[states.starts[row] : states.starts[row + 1]]
        np.testing.assert_array_equal(own, states[row][: len(own)])


def test_a_prefix_is_keys_and_values_before_those_of_the_tokens():
    """One block's attention in float64, with the prefix simply put in front."""
    sizes = {"layers": 2, "width": 8, "heads": 2, "positions": 16}
    network = models.build("gpt2", (6,), 1, 11, prefix=3, **sizes)
    params = random_params(network)
    prefixes = [path for path in flat(params) if "prefix" in path]
    assert len(prefixes) == 4
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 5, 2, 4))
    before = rng.normal(size=(2, 3, 2, 4))
    allowed = np.tri(5, dtype=bool)
    keys, values = (
        np.concatenate([first, rest]) for first, rest in zip(before, (key, value), strict=True)
    )
    scores = np.einsum("qhd,khd->hqk", query, keys) / 2
    scores[:, ~np.concatenate([np.ones((5, 3), bool), allowed], axis=1)] = -np.inf
    weights = np.exp(scores)
    expected = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)
    found = attend(query, Memory(key, value), allowed, Memory(*before))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # What is generated, with a memory, is what the whole sequence says.
    greedy = models.generate(network, params, np.array([[3, 4]]), steps=2, end=0)[0]
    tokens = jnp.array([3, 4, greedy[0], -1, -1, -1])
    logits = fast_jit(network.apply)(params, tokens)
    assert [int(t) for t in greedy] == [int(jnp.argmax(row)) for row in logits[1:3]]
    own, frozen = models.split(params, ["*/prefix_*"])
    examples = jnp.array([[3, 4, 5, 0, -1, -1], [1, 2, 3, 4, 5, 0]]), jnp.array([2, 3])

    def loss(own, example):
        return network.loss(models.Parameters(own, frozen).merged(), *example)

    assert dpjax.explain(loss, own, (examples[0][0], examples[1][0])).fallbacks == ()
    ghost, plain = (clipped(network, own, frozen, examples, e) for e in ("ghost", "vmap"))
    np.testing.assert_allclose(ghost[0], plain[0], rtol=1e-5)


def test_mean_pooling_counts_real_tokens_alone():
    network = encoder(pooling="mean_direct")
    params = random_params(network)
    assert "pooler" not in params
    halves = models.cut(network, params, 3)
    tokens, _ = batch()
    states = np.float64(fast_jit(halves.prefix.apply)(halves.prefix_params, tokens[1]))
    classifier = params["classifier"]
    expected = states[:4].mean(axis=0) @ classifier["kernel"] + classifier["bias"]
    np.testing.assert_allclose(fast_jit(network.apply)(params, tokens[1]), expected, atol=1e-5)
