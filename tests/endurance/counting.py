"""What was tried and how often, so that the figures of a run of this suite are counted, not said.

``DPJAX_ENDURANCE_LOG=FILE`` appends a line of JSON for each entry when the process ends;
`scripts/endurance.py` adds them up. ``DPJAX_FUZZ=n`` tries n times as many inputs, for long runs:
the fast suite tries few, always the same (``derandomize``); with n > 1 each run tries others.
"""

import atexit
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

FUZZ = max(1, int(os.environ.get("DPJAX_FUZZ", "1")))

_counts: Counter[tuple[str, str]] = Counter()


def count(kind: str, entry: str, number: int = 1) -> None:
    """Adds to what was tried: `kind` is "input", "step" or "example"."""
    _counts[kind, entry] += number


def examples(number: int) -> Callable[[Any], Any]:
    """Settings of a fuzzing test that tries so many inputs, times ``DPJAX_FUZZ``."""
    return settings(
        max_examples=number * FUZZ,
        derandomize=FUZZ == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@atexit.register
def _write() -> None:
    file = os.environ.get("DPJAX_ENDURANCE_LOG")
    if not file or not _counts:
        return
    with open(file, "a", encoding="utf-8") as stream:
        for (kind, entry), number in sorted(_counts.items()):
            stream.write(json.dumps({"kind": kind, "entry": entry, "number": number}) + "\n")
