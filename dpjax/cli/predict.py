"""``dpjax predict``: runs a network in a Hugging Face directory on texts."""

import argparse
import sys
from pathlib import Path

from dpjax.cli.command import Command

__all__ = ["COMMAND"]

_AT_ONCE = 64


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="as `dpjax export` writes it")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="without any, lines of stdin")
    parser.add_argument("--pair", metavar="TEXT", help="a second text, for tasks with pairs")
    parser.add_argument("--length", type=int, default=128, help="tokens of a text")
    parser.add_argument("--new-tokens", type=int, default=40, help="of a language model")
    parser.add_argument(
        "--beams", type=int, default=5, help="the beams of a language model's search"
    )


def _run(args: argparse.Namespace) -> int:
    import jax  # noqa: PLC0415  help is shown without it

    from dpjax import models  # noqa: PLC0415

    texts = args.texts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not texts:
        raise ValueError("no text: expected some as arguments, or lines on stdin")
    model = models.from_pretrained(Path(args.directory), length=args.length)
    if model.new:
        raise ValueError(
            f"{args.directory}: holds no {model.new[0]}: expected a network that was trained for "
            "a task, as `dpjax export` writes it"
        )
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise FileNotFoundError(f"{args.directory}: no tokenizer; expected one to read texts with")
    if model.network.name == "gpt2":
        if args.pair is not None:
            raise ValueError("--pair: expected none; a language model continues a single text")
        rows = tokenizer.rows(texts, length=args.length)
        assert tokenizer.end is not None
        found = models.generate(
            model.network,
            model.params,
            rows,
            steps=args.new_tokens,
            end=tokenizer.end,
            beams=args.beams,
        )
        for new in found:
            print(tokenizer.decode(jax.device_get(new)).strip())
        return 0
    names = model.config.get("id2label", {})
    logits_of = jax.jit(jax.vmap(model.network.apply, in_axes=(None, 0)))
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        pairs = None if args.pair is None else [args.pair] * len(some)
        rows = tokenizer.rows(some, pairs, length=args.length)
        for text, row in zip(some, jax.nn.softmax(logits_of(model.params, rows)), strict=True):
            best = int(row.argmax())
            print(f"{names.get(str(best), best)}\t{float(row[best]):.4f}\t{text}")
    return 0


COMMAND = Command(
    _add_flags,
    _run,
    ('dpjax predict private-bert "a gripping, funny film"', "dpjax predict private-bert < reviews"),
)
