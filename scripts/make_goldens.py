"""Makes tests/models/golden: tiny random networks, and what `transformers` computes with them.

Run it in a separate environment with torch (`pip install -e '.[goldens]'`):

    python scripts/make_goldens.py tests/models/golden
    python scripts/make_goldens.py tests/models/golden --sentences sst2/train.tsv \
        --bert-vocab bert-vocab --gpt2-bpe gpt2-bpe      # also hashes of real sentences' tokens
    python scripts/make_goldens.py --check DIR           # reads a directory that dpjax wrote

The tests read the files and need neither torch nor transformers. Weights are random, in float32;
the expected values are computed in float64.
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZES = {"vocab_size": 40, "pad_token_id": 0}
ENCODER = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "num_labels": 3,
}
SEPARATOR = 5
TEXTS = [
    "A gripping, funny film!",
    "It doesn't work: the plot's a mess.",
    "naïve CAFÉ — 3.5 stars",
    "unbelievable",
    "  spaces   and\ttabs ",
    "",
]
PAIRS = ["Is it good?", "No.", "Yes, it is very good indeed", "un", "x", "a"]


def families():
    """Yields a name, a configuration, a class, and the numbers of special tokens."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    yield (
        "bert",
        transformers.BertConfig(**SIZES, **ENCODER, **no_dropout),
        transformers.BertForSequenceClassification,
    )
    yield (
        "roberta",
        transformers.RobertaConfig(
            **{**SIZES, **ENCODER, "pad_token_id": 1, "max_position_embeddings": 18},
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            **no_dropout,
        ),
        transformers.RobertaForSequenceClassification,
    )
    yield (
        "distilbert",
        transformers.DistilBertConfig(
            **SIZES,
            n_layers=2,
            dim=8,
            n_heads=2,
            hidden_dim=12,
            max_position_embeddings=16,
            num_labels=3,
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
        ),
        transformers.DistilBertForSequenceClassification,
    )


def filled(model, seed):
    """Fills a network with random numbers that are large enough to be told apart."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        around = 1.0 if "norm" in name.lower() or ".ln_" in name else 0.0
        around = around if name.endswith("weight") else 0.0
        deviation = 0.25 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = around + deviation * noise
    return model.eval()


def norm_of(model, loss):
    """Returns the norm of one example's gradient with respect to all parameters."""
    model.zero_grad()
    loss.backward()
    squares = (p.grad.pow(2).sum() for p in model.parameters() if p.grad is not None)
    return float(sum(squares).sqrt())


def write(folder, model, expected):
    """Writes a directory with weights in float32, and the expected values."""
    shutil.rmtree(folder, ignore_errors=True)
    model.float().save_pretrained(folder, safe_serialization=True)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def encoders(out):
    """Writes logits and gradient norms of the three encoders, with padding and two segments."""
    for number, (name, config, cls) in enumerate(families()):
        torch.manual_seed(number)
        model = filled(cls(config), number).double()
        generator = torch.Generator().manual_seed(100 + number)
        tokens = torch.randint(6, 40, (4, 10), generator=generator)
        tokens[0, 4] = tokens[0, 9] = SEPARATOR
        tokens[1, 6] = SEPARATOR
        tokens[1, 7:] = config.pad_token_id
        tokens[2, 1:] = config.pad_token_id
        labels = [0, 1, 2, 1]
        logits, norms, losses = [], [], []
        for row, label in zip(tokens, labels, strict=True):
            real = (row != config.pad_token_id).long()[None]
            inputs = {"input_ids": row[None], "attention_mask": real}
            if name == "bert":
                ends = (row == SEPARATOR).long()
                inputs["token_type_ids"] = ((ends.cumsum(0) > ends).long() * real[0])[None]
            output = model(**inputs, labels=torch.tensor([label]))
            logits.append(output.logits[0].tolist())
            losses.append(float(output.loss.detach()))
            norms.append(norm_of(model, output.loss))
        expected = {"tokens": tokens.tolist(), "labels": labels, "logits": logits}
        write(out / name, model, {**expected, "losses": losses, "norms": norms})


def causal(out):
    """Writes GPT-2's logits, the loss of the targets, gradient norms, greedy and beam search."""
    config = transformers.GPT2Config(
        vocab_size=40,
        n_layer=2,
        n_embd=8,
        n_head=2,
        n_positions=24,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    # With this seed and scale, beams differ from greedy search, and some of them end early.
    model = filled(transformers.GPT2LMHeadModel(config), 8)
    model.transformer.wpe.weight.data *= 1.7
    model.transformer.wte.weight.data[0] *= 1.4
    model = model.double()
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 40, (3, 10), generator=generator)
    lengths, starts = [10, 7, 4], [3, 2, 1]
    rows, logits, losses, norms = [], [], [], []
    for row, length, start in zip(tokens, lengths, starts, strict=True):
        text = row[:length][None]
        output = model(text)
        following = torch.nn.functional.cross_entropy(
            output.logits[0, :-1], text[0, 1:], reduction="none"
        )
        loss = following[start - 1 :].mean()
        logits.append(output.logits[0, -1].tolist())
        losses.append(float(loss.detach()))
        norms.append(norm_of(model, loss))
        rows.append([*row[:length].tolist(), *[-1] * (10 - length)])
    searches = []
    for seed in range(8):
        prompt = torch.randint(
            1, 40, (1, 2 + seed % 3), generator=torch.Generator().manual_seed(seed)
        )
        found = {"prompt": prompt[0].tolist()}
        for beams, penalty in ((1, 1.0), (5, 1.0), (5, 0.6)):
            answer = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=12,
                num_beams=beams,
                length_penalty=penalty,
                do_sample=False,
                pad_token_id=0,
            )[0, prompt.shape[1] :].tolist()
            ended = [*answer, 0]
            found[f"{beams} {penalty}"] = ended[: ended.index(0) + 1][:12]
        searches.append(found)
    expected = {"tokens": rows, "starts": starts, "logits": logits, "losses": losses}
    write(out / "gpt2", model, {**expected, "norms": norms, "searches": searches})


def small_tokenizers(out):
    """Writes small word-piece and byte-pair tokenizers, and transformers' tokens for some texts."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted({c for c in "".join([*TEXTS, *PAIRS]).lower() if c.strip() and c.isascii()})
    pieces += [*letters, *(f"##{c}" for c in letters if c.isalnum())]
    pieces += ["film", "funny", "plot", "un", "##believ", "##able", "cafe", "it", "is", "good"]
    folder = out / "word_pieces"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    bert = transformers.BertTokenizer.from_pretrained(str(folder), do_lower_case=True)
    write_ids(folder, {"bert": bert})

    corpus = [*TEXTS, *PAIRS] * 3
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(corpus, trainer)
    folder = out / "byte_pairs"
    folder.mkdir(parents=True, exist_ok=True)
    engine.model.save(str(folder))
    roberta = transformers.RobertaTokenizer.from_pretrained(str(folder))
    gpt2 = transformers.GPT2Tokenizer.from_pretrained(str(folder))
    write_ids(folder, {"roberta": roberta, "gpt2": gpt2})


def write_ids(folder, known):
    """Writes the tokens of the small sample, cut to 12."""
    expected = {}
    for name, tokenizer in known.items():
        single = tokenizer(TEXTS, truncation=True, max_length=12)["input_ids"]
        pairs = tokenizer(TEXTS, PAIRS, truncation=True, max_length=12)["input_ids"]
        expected[name] = {"single": single, "pairs": pairs}
    expected["texts"], expected["seconds"] = TEXTS, PAIRS
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def hashed(rows):
    """Returns a hash of token rows, which reveals nothing about the sentences."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def real_sentences(out, sentences, bert_vocab, gpt2_bpe, scratch):
    """Writes hashes of the tokens of the first 1,000 sentences of SST-2's training file."""
    lines = Path(sentences).read_text(encoding="utf-8").split("\n")[1:1001]
    texts = [line.split("\t")[0] for line in lines]
    scratch.mkdir(parents=True, exist_ok=True)
    vocabulary = json.loads((Path(gpt2_bpe) / "encoder.json").read_text(encoding="utf-8"))
    merges = (Path(gpt2_bpe) / "vocab.bpe").read_text(encoding="utf-8")
    own = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    own |= {token: 4 + number for token, number in vocabulary.items()}
    own["<mask>"] = len(own)
    for name, table in (("gpt2", vocabulary), ("roberta", own)):
        (scratch / name).mkdir(exist_ok=True)
        (scratch / name / "vocab.json").write_text(json.dumps(table, ensure_ascii=False))
        (scratch / name / "merges.txt").write_text(merges)
    known = {
        "bert": transformers.BertTokenizer.from_pretrained(str(bert_vocab), do_lower_case=True),
        "roberta": transformers.RobertaTokenizer.from_pretrained(str(scratch / "roberta")),
        "gpt2": transformers.GPT2Tokenizer.from_pretrained(str(scratch / "gpt2")),
    }
    expected = {name: hashed(tokenizer(texts)["input_ids"]) for name, tokenizer in known.items()}
    (out / "sst2_first_1000.json").write_text(json.dumps(expected, indent=1) + "\n")


def check(folder):
    """Reads a directory that dpjax wrote, and reports whether transformers finds every weight."""
    config = transformers.AutoConfig.from_pretrained(folder)
    cls = getattr(transformers, config.architectures[0])
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    print({key: sorted(value) for key, value in info.items() if value})
    count = sum(p.numel() for p in model.parameters())
    print(f"{type(model).__name__}: {count} parameters")


def main():
    """Makes or checks the files, as the arguments ask."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("output", nargs="?", type=Path)
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--bert-vocab", type=Path)
    parser.add_argument("--gpt2-bpe", type=Path)
    parser.add_argument("--check", type=Path)
    args = parser.parse_args()
    if args.check:
        check(args.check)
        return
    encoders(args.output)
    causal(args.output)
    small_tokenizers(args.output)
    if args.sentences:
        scratch = args.output / "scratch"
        real_sentences(args.output, args.sentences, args.bert_vocab, args.gpt2_bpe, scratch)
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
