"""Writes docs/results/minilm.md from docs/results/minilm.csv: python scripts/minilm_page.py."""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "minilm.csv"
TITLES = {"sst2": "SST-2, 67,349 sentences", "qnli": "QNLI subset, 10,475 pairs"}
PARTS = {
    "probe": "linear probe",
    "last": "last block and classifier",
    "lora": "LoRA and classifier",
    "full": "everything",
}

Rows = Sequence[dict[str, str]]


def page(rows: Rows) -> str:
    """Returns the page: accuracies per data set, by what is trained, method and budget."""
    lines = [
        "# MiniLM, fine-tuned privately",
        "",
        "Accuracy on the dev set in percent: the mean over seeds (lowest to highest, number of",
        "seeds), or the result of the only seed. SST-2's dev set has 872 sentences, so an accuracy",
        "has a standard error of about 1.3 points. Seeds do not show it, since all of them are",
        "tested on the same sentences. Delta is one over the number of training examples. Texts",
        "are classified from the mean of their tokens' states. *Not private* is the same program",
        "with hardly any noise (1e-6) and a threshold that clips nothing (1,000).",
        "",
        "Every run, with its seed, is a line of [minilm.csv](minilm.csv), which `python",
        "scripts/minilm.py --data-dir DATA --cache-dir CACHE` writes; `python",
        "scripts/minilm_page.py` makes this page from it.",
    ]
    for task, title in TITLES.items():
        own = [row for row in rows if row["task"] == task]
        if own:
            lines += ["", f"## {title}", "", *_table(own), "", *_settings(own)]
    return "\n".join(lines) + "\n"


def _table(rows: Rows) -> list[str]:
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["part"], row["method"]][row["epsilon"]].append(float(row["accuracy"]))
    budgets = sorted({row["epsilon"] for row in rows}, key=lambda text: float(text or "inf"))
    heads = [f"epsilon {budget}" if budget else "not private" for budget in budgets]
    lines = [f"| trained | method | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for (part, method), cells in found.items():
        shown = " | ".join(_cell(cells.get(budget, [])) for budget in budgets)
        lines.append(f"| {PARTS[part]} | {'' if method == 'plain' else method} | {shown} |")
    return lines


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    spread = f" ({min(values):.1f} to {max(values):.1f}, {len(values)})" if len(values) > 1 else ""
    return f"{mean:.1f}{spread}"


def _settings(rows: Rows) -> list[str]:
    heads = "| trained | parameters | expected batch | steps | Adam's rate | CPU minutes a run |"
    lines = [heads, "|---|---|---|---|---|---|"]
    for part in dict.fromkeys(row["part"] for row in rows):
        own = [row for row in rows if row["part"] == part]
        row, minutes = own[0], sum(int(row["cpu_seconds"]) for row in own) / len(own) / 60
        numbers = f"{int(row['trained']):,} | {row['batch']} | {row['steps']} | {row['rate']}"
        lines.append(f"| {PARTS[part]} | {numbers} | {minutes:.1f} |")
    return lines


def main() -> None:
    """Writes the page next to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    path = parser.parse_args().results
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    path.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
