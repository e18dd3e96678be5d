"""Times calibration and schedule accounting, relative to dp-accounting alone and Opacus.

    python scripts/bench_accounting.py

MNIST's setting: N 60,000, B 256, delta 1/N. Opacus is included if it is installed. dp-accounting
and Opacus take one noise multiplier at a time, so they are timed on a schedule with fewer distinct
values, and their time is scaled up, as the table notes. Times are in seconds, from a single run;
short tasks report the fastest of three repetitions.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np

import dpjax
from dpjax import accounting, methods, sampling, schedules

SIZE, BATCH, STEPS = 60_000, 256, 2344
RATE, DELTA = BATCH / SIZE, 1 / SIZE
POISSON = sampling.Poisson.with_rate(RATE)
FEW = 20


def seconds(job: Callable[[], Any], repeats: int = 3) -> float:
    """Returns the time of the fastest of a few runs; a long job runs once."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < 5:
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


def decaying(distinct: int) -> dpjax.Mechanism:
    """Returns plain clipping with a noise multiplier that falls from 1.6 to 0.8."""
    values = tuple(np.geomspace(1.6, 0.8, distinct).tolist())
    return methods.dp_sgd(schedules.table(values, steps_per_epoch=STEPS / distinct))


def dpjax_epsilon(distinct: int, accountant: str) -> float:
    """Times a schedule in dpjax; for PLD, including its lower bound."""
    method = decaying(distinct)
    return seconds(lambda: accounting.epsilon(method, POISSON, STEPS, DELTA, accountant))


def library_epsilon(distinct: int, accountant: str) -> float:
    """Times the same schedule in dp-accounting, or a part of it with the time scaled up."""
    event = accounting.event(decaying(min(distinct, FEW)), POISSON, STEPS)
    kind = (
        dp_accounting.rdp.RdpAccountant if accountant == "rdp" else dp_accounting.pld.PLDAccountant
    )
    once = seconds(lambda: kind().compose(event).get_epsilon(DELTA))
    return once * max(1.0, distinct / FEW)


def library_calibration(accountant: str) -> float:
    """Times calibrating a constant noise multiplier with dp-accounting alone, to 1e-4."""
    kind = (
        dp_accounting.rdp.RdpAccountant if accountant == "rdp" else dp_accounting.pld.PLDAccountant
    )

    def event(sigma: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, STEPS)

    bracket = dp_accounting.ExplicitBracketInterval(0.5, 4.0)
    return seconds(
        lambda: dp_accounting.calibrate_dp_mechanism(kind, event, 2.0, DELTA, bracket, tol=1e-4)
    )


def opacus_times() -> dict[tuple[str, str], float]:
    """Times Opacus on the same tasks; empty if it is not installed."""
    if importlib.util.find_spec("opacus") is None:
        return {}
    from opacus.accountants import create_accountant  # noqa: PLC0415
    from opacus.accountants.utils import get_noise_multiplier  # noqa: PLC0415

    def epsilon(kind: str, distinct: int) -> None:
        accountant = create_accountant(kind)
        runs = accounting.events.noise_multipliers(decaying(distinct), STEPS)
        accountant.history = [(sigma, RATE, count) for sigma, count in runs]
        accountant.get_epsilon(DELTA)

    def calibration(kind: str) -> None:
        get_noise_multiplier(
            target_epsilon=2.0,
            target_delta=DELTA,
            sample_rate=RATE,
            steps=STEPS,
            accountant=kind,
            epsilon_tolerance=2e-3,
        )

    times = {}
    for name, kind in (("rdp", "rdp"), ("pld", "prv")):
        times["calibrate a constant", name] = seconds(lambda kind=kind: calibration(kind))
        few = seconds(lambda kind=kind: epsilon(kind, FEW))
        times[f"epsilon, {FEW} distinct", name] = few
        times["epsilon, 2000 distinct", name] = few * 2000 / FEW
    return times


def calibration(method: dpjax.Mechanism, accountant: str) -> float:
    """Times dpjax' calibration to epsilon 2."""
    return seconds(lambda: accounting.calibrate(method, POISSON, STEPS, 2.0, DELTA, accountant))


def tasks(accountant: str) -> dict[str, tuple[float, float | None]]:
    """Returns the times of dpjax and of dp-accounting for each task."""
    times: dict[str, tuple[float, float | None]] = {
        f"epsilon, {distinct} distinct": (
            dpjax_epsilon(distinct, accountant),
            library_epsilon(distinct, accountant),
        )
        for distinct in (FEW, 2000)
    }
    times["calibrate a constant"] = (
        calibration(methods.dp_sgd(1.0), accountant),
        library_calibration(accountant),
    )
    times["calibrate 2000 distinct"] = calibration(decaying(2000), accountant), None
    return times


def compared(ours: float, theirs: float | None) -> str:
    """Returns two cells: their time, and its ratio to ours."""
    return "- | -" if theirs is None else f"{theirs:.2f} | {theirs / ours:.1f}"


def main() -> None:
    """Prints the table."""
    opacus = opacus_times()
    print("| task | accountant | dpjax, s | dp-accounting, s | ratio | Opacus, s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for accountant in ("rdp", "pld"):
        for task, (ours, library) in tasks(accountant).items():
            other = opacus.get((task, accountant))
            cells = f"{compared(ours, library)} | {compared(ours, other)}"
            print(f"| {task} | {accountant} | {ours:.2f} | {cells} |", flush=True)
    print(f"\nAt 2000 distinct values: dp-accounting's and Opacus' time for {FEW}, times 100.")


if __name__ == "__main__":
    main()
