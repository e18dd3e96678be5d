"""GPT-2 on the E2E challenge: tables to texts, private or not, scored by BLEU, ROUGE-L and NIST.

    python scripts/finetune_e2e.py --data e2e-dataset --pretrained gpt2 --epsilon 3
    python scripts/finetune_e2e.py --data e2e-dataset --pretrained gpt2 --train lora --epsilon 8
    python scripts/finetune_e2e.py --data e2e-dataset --vocabulary gpt2-bpe --layers 4 --width 256

The first is a cell of Automatic Clipping's table 4, with Li et al.'s settings: batches of 1,024, 10
epochs, 100 tokens, Adam at 2e-3 without decay, delta 8e-6, beam search with 5 beams. Without
--pretrained the network is new (the table's "retrain"), with the tokenizer of --vocabulary.
"""

import argparse
import secrets
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import dpjax
from dpjax import models
from dpjax.data.e2e import causal_rows, prompt_rows, read_e2e
from dpjax.data.text_scores import bleu, nist, rouge_l

PATTERNS = {"full": [], "top2": ["blocks/-2", "blocks/-1", "norm"], "lora": ["*/lora_*"]}


def started(args):
    """Returns the network, its parameters and its tokenizer."""
    if args.pretrained is not None:
        model = models.from_pretrained(args.pretrained, length=args.length)
        network, params, tokenizer = model.network, model.params, model.tokenizer
    else:
        tokenizer = models.Tokenizer.from_directory(args.vocabulary, "gpt2")
        sizes = {"layers": args.layers, "width": args.width, "heads": max(1, args.width // 64)}
        network = models.build("gpt2", (args.length,), 1, tokenizer.vocabulary, **sizes)
        params = network.init(jax.random.key(args.seed or 0))
    if args.train == "lora":
        network = models.add_lora(network, models.LoRA(rank=4, alpha=32.0))
        new = models.parameters.flat(network.init(jax.random.key(args.seed or 0)))
        params = models.parameters.nested({**new, **models.parameters.flat(params)})
    return network, params, tokenizer


def trained(args, network, params, rows, sampling, mechanism, key):
    """Returns the parameters after all steps; what is frozen is an argument, not a constant."""
    optimizer = optax.adam(args.rate)
    tx = optax.chain(dpjax.privatize(mechanism, sampling, key), optimizer)
    data = tuple(jnp.asarray(part) for part in rows)
    own, frozen = models.split(params, PATTERNS[args.train])

    @jax.jit
    def step(own, state, frozen, t):
        def loss(own, example):
            return network.loss(models.Parameters(own, frozen).merged(), *example)

        grads_of = dpjax.per_example_grads(loss, engine="ghost", chunk=args.chunk)
        updates, state = tx.update(grads_of(own, data, sampling.draw(key, t)), state, own)
        return optax.apply_updates(own, updates), state

    state = tx.init(own)
    for t in range(args.steps):
        own, state = step(own, state, frozen, t)
        if t % 10 == 0:
            jax.block_until_ready(own)
            print(f"step {t} of {args.steps}", flush=True)
    return models.Parameters(own, frozen).merged()


def main():
    """Trains, generates and scores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="the challenge's csv files")
    parser.add_argument("--pretrained", type=Path, help="GPT-2's Hugging Face directory")
    parser.add_argument("--vocabulary", type=Path, help="the tokenizer of a new network")
    parser.add_argument("--train", choices=sorted(PATTERNS), default="full")
    parser.add_argument("--method", default="auto_s", help="a constructor in dpjax.methods")
    parser.add_argument("--epsilon", type=float, help="without it, not private")
    parser.add_argument("--delta", type=float, default=8e-6)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--steps", type=int, help="in place of --epochs")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--examples", type=int, help="of the training set; all without it")
    parser.add_argument("--tables", type=int, help="of the test set; all without it")
    parser.add_argument("--seed", type=int, help="for research: such a run is not to be published")
    args = parser.parse_args()
    network, params, tokenizer = started(args)
    corpus = read_e2e(args.data)
    rows = causal_rows(corpus.train[: args.examples], tokenizer, length=args.length)
    sampling = dpjax.sampling.Poisson(args.batch, len(rows.y))
    args.steps = args.steps or round(args.epochs * len(rows.y) / args.batch)
    if args.epsilon is None:  # nothing is clipped, and the noise is far below what training notices
        mechanism = dpjax.methods.dp_sgd(1e-6, threshold=1e3)
    else:
        method = getattr(dpjax.methods, args.method)()
        mechanism = dpjax.calibrate(method, sampling, args.steps, args.epsilon, args.delta)
    key = jax.random.key(secrets.randbits(63) if args.seed is None else args.seed)
    params = trained(args, network, params, rows, sampling, mechanism, key)
    if args.epsilon is not None:
        spent = dpjax.epsilon(mechanism, sampling, args.steps, args.delta)
        print(f"epsilon {spent:.3f} at delta {args.delta:g}, {len(rows.y)} examples")
    tables = corpus.test[: args.tables]
    texts = []
    for start in range(0, len(tables), 64):
        some = tables[start : start + 64]
        prompts = prompt_rows(some, tokenizer, length=args.length)
        found = models.generate(
            network, params, prompts, steps=args.length, end=tokenizer.end, beams=5
        )
        texts += [tokenizer.decode(new).strip() for new in jax.device_get(found)]
    references = [own.texts for own in tables]
    print(f"first: {texts[0]!r}")
    scores = 100 * bleu(texts, references), 100 * rouge_l(texts, references)
    print(f"BLEU {scores[0]:.3f}  ROUGE-L {scores[1]:.3f}  NIST {nist(texts, references):.4f}")


if __name__ == "__main__":
    main()
