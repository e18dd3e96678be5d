"""Fine-tunes GPT-2 on the E2E challenge, private or not, and scores it by BLEU, ROUGE-L and NIST.

    python scripts/finetune_e2e.py --data e2e-dataset --cell auto-clip/4/e2e/gpt2/3/lora/bleu \\
        --pretrained gpt2
    python scripts/finetune_e2e.py --data e2e-dataset --vocabulary gpt2-bpe --merges 1792 \\
        --layers 4 --width 128 --epsilon 8 --seed 1 --results docs/results/e2e.csv

The first example is a cell of Automatic Clipping's table 4 (`dpjax papers list` names them). Like
the paper, it uses the settings of Li et al.: batches of 1,024, 10 epochs, 100 tokens, Adam at 2e-3
without decay, delta 8e-6, threshold 0.1, and beam search with 5 beams. Without --pretrained, the
network is new (the table's "retrain"), with the tokenizer of --vocabulary. --merges keeps only the
first byte pairs of GPT-2, for a token table that a small network can afford. The byte pairs were
chosen on other texts, so they cost no privacy.
"""

import argparse
import csv
import json
import math
import secrets
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import dpjax
from dpjax import models
from dpjax.data.e2e import causal_rows, prompt_rows, read_e2e
from dpjax.data.text_scores import bleu, nist, rouge_l
from dpjax.papers.printed_numbers import cell_named

PATTERNS = {
    "full": [],
    "top2": ["blocks/-2", "blocks/-1", "norm"],
    "lora": ["*/lora_*"],
    "prefix": ["*/prefix_*"],
}
PREFIX = 10
# The columns of table 4: what is trained, and by which method. Li et al.'s use Abadi's clipping.
COLUMNS = {
    "AUTO-S": ("full", "auto_s"),
    "AUTO-V": ("full", "auto_v"),
    "full": ("full", "dp_sgd"),
    "LoRA": ("lora", "dp_sgd"),
    "prefix": ("prefix", "dp_sgd"),
    "top2": ("top2", "dp_sgd"),
    "retrain": ("full", "dp_sgd"),
}
SIZES = {
    "GPT2": {"layers": 12, "width": 768},
    "GPT2-medium": {"layers": 24, "width": 1024},
    "GPT2-large": {"layers": 36, "width": 1280},
}


def set_cell(args, parser):
    """Fills in the settings of a cell of the table."""
    cell = cell_named(args.cell)
    if cell.dataset != "E2E" or cell.method not in COLUMNS:
        parser.error(f"--cell {args.cell}: expected one of table 4 that is trained here")
    args.train, args.method = COLUMNS[cell.method]
    args.epsilon = cell.epsilon if math.isfinite(cell.epsilon) else None
    if cell.method == "retrain":
        if args.vocabulary is None:
            parser.error(f"--cell {args.cell}: expected --vocabulary, since the network is new")
        args.pretrained = None
        args.layers, args.width = SIZES[cell.model].values()
    elif args.pretrained is None:
        parser.error(f"--cell {args.cell}: expected --pretrained, a directory of {cell.model}")
    print(f"{args.cell}: printed {cell.value}")


def gpt2_tokenizer(directory, merges=None):
    """Returns GPT-2's tokenizer, or one that uses only its first merges."""
    if merges is None:
        return models.Tokenizer.from_directory(directory, "gpt2")
    tokens = json.loads((directory / "encoder.json").read_text(encoding="utf-8"))
    kept = {token: number for token, number in tokens.items() if number < 256 + merges}
    kept["<|endoftext|>"] = len(kept)
    header, *pairs = (directory / "vocab.bpe").read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.json").write_text(json.dumps(kept), encoding="utf-8")
        lines = "\n".join([header, *pairs[:merges]]) + "\n"
        (Path(folder) / "merges.txt").write_text(lines, encoding="utf-8")
        return models.Tokenizer.from_directory(folder, "gpt2")


def started(args):
    """Returns the network, its parameters and its tokenizer."""
    added = {"prefix": PREFIX} if args.train == "prefix" else {}
    if args.pretrained is not None:
        model = models.from_pretrained(args.pretrained, length=args.length, **added)
        network, params, tokenizer = model.network, model.params, model.tokenizer
    else:
        tokenizer = gpt2_tokenizer(args.vocabulary, args.merges)
        sizes = {"layers": args.layers, "width": args.width, "heads": max(1, args.width // 64)}
        sizes |= added
        network = models.build("gpt2", (args.length,), 1, tokenizer.vocabulary, **sizes)
        params = network.init(jax.random.key(args.seed or 0))
    if args.train == "lora":
        network = models.add_lora(network, models.LoRA(rank=4, alpha=32.0))
        new = models.parameters.flat(network.init(jax.random.key(args.seed or 0)))
        params = models.parameters.nested({**new, **models.parameters.flat(params)})
    return network, params, tokenizer


def trained(args, network, params, rows, sampling, mechanism, key):
    """Returns the parameters after all steps; frozen ones are an argument, not a constant."""
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


def arguments():
    """Returns the command-line arguments, with a cell's settings filled in."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="the challenge's csv files")
    parser.add_argument("--cell", help="a number of table 4, as auto-clip/4/e2e/gpt2/3/lora/bleu")
    parser.add_argument("--pretrained", type=Path, help="GPT-2's Hugging Face directory")
    parser.add_argument("--vocabulary", type=Path, help="the tokenizer of a new network")
    parser.add_argument("--merges", type=int, help="keep so many of the tokenizer's; all without")
    parser.add_argument("--train", choices=sorted(PATTERNS), default="full")
    parser.add_argument("--method", default="auto_s", help="a constructor in dpjax.methods")
    parser.add_argument("--threshold", type=float, default=0.1)
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
    parser.add_argument("--results", type=Path, help="a csv file that gets a line")
    parser.add_argument("--seed", type=int, help="for research: such a run is not to be published")
    args = parser.parse_args()
    if args.cell is not None:
        set_cell(args, parser)
    return args


def main():
    """Trains, generates and scores."""
    args, began = arguments(), time.process_time()
    network, params, tokenizer = started(args)
    corpus = read_e2e(args.data)
    rows = causal_rows(corpus.train[: args.examples], tokenizer, length=args.length)
    sampling = dpjax.sampling.Poisson(args.batch, len(rows.y))
    args.steps = args.steps or round(args.epochs * len(rows.y) / args.batch)
    if args.epsilon is None:  # clips nothing, and the noise is too small to affect training
        mechanism = dpjax.methods.dp_sgd(1e-6, threshold=1e3)
    else:
        method = getattr(dpjax.methods, args.method)(threshold=args.threshold)
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
    scores = {
        "bleu": round(100 * bleu(texts, references), 3),
        "rouge_l": round(100 * rouge_l(texts, references), 3),
        "nist": round(nist(texts, references), 4),
    }
    print(scores)
    if args.results is not None:
        write(args, scores, network.param_count, len(rows.y), time.process_time() - began)


def write(args, scores, parameters, examples, seconds):
    """Appends a line to the results."""
    row = {
        "network": args.pretrained.name if args.pretrained else f"{args.layers} x {args.width}",
        "parameters": parameters,
        "trained": args.train if args.pretrained else "retrain",
        "method": "none" if args.epsilon is None else args.method,
        "epsilon": "" if args.epsilon is None else args.epsilon,
        "seed": "" if args.seed is None else args.seed,
        "examples": examples,
        "batch": args.batch,
        "steps": args.steps,
        "rate": args.rate,
        **scores,
        "cpu_seconds": round(seconds),
    }
    new = not args.results.is_file()
    with args.results.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
