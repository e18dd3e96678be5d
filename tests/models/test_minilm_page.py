"""The page of results that scripts/minilm_page.py writes."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "minilm_page.py"


def test_accuracies_are_averaged_over_seeds_alone():
    page = runpy.run_path(str(SCRIPT))["page"]
    fixed = {"task": "sst2", "trained": "770", "batch": "1024", "steps": "330", "rate": "0.01"}
    varied = ("part", "method", "epsilon", "accuracy", "cpu_seconds")
    rows = [
        {**fixed, **dict(zip(varied, values, strict=True))}
        for values in [
            ("probe", "plain", "", "81.0", "18"),
            ("probe", "auto_s", "3", "79.0", "10"),
            ("probe", "auto_s", "8", "80.0", "10"),
            ("probe", "auto_s", "3", "80.0", "10"),
            ("last", "auto_s", "8", "82.5", "270"),
        ]
    ]
    text = page(rows)
    assert "| trained | method | epsilon 3 | epsilon 8 | not private |" in text
    assert "| linear probe |  |  |  | 81.0 |" in text
    assert "| linear probe | auto_s | 79.5 (79.0 to 80.0, 2) | 80.0 |  |" in text
    assert "| last block and classifier | auto_s |  | 82.5 |  |" in text
    assert "| linear probe | 770 | 1024 | 330 | 0.01 | 0.2 |" in text
    assert "| last block and classifier | 770 | 1024 | 330 | 0.01 | 4.5 |" in text
    assert "QNLI" not in text
