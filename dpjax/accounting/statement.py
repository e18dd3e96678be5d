"""The privacy statement: a ledger in words, with what was not counted."""

from collections.abc import Sequence

from dpjax.accounting.bound import Bound, rounded_down, rounded_up
from dpjax.accounting.ledger import Ledger, Steps
from dpjax.accounting.queries import Query
from dpjax.accounting.tuning import Search, grid_composition
from dpjax.mechanism import Mechanism
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson

__all__ = ["NOT_COUNTED", "privacy_statement"]

NOT_COUNTED = (
    "the choice of method, model and hyper-parameters, unless a search above says so",
    "other runs and releases on the same data that are not listed above",
    "whatever was computed from the data without noise: preprocessing, plots, diagnostics",
    "the rounding of numbers inside a grid cell of the noise, and side channels such as run time",
)

_RELATIONS = {
    "add_or_remove_one": "two data sets are neighbours if one has {unit} more than the other",
    "replace_one": "two data sets are neighbours if they differ in {unit}, which was replaced",
}

# Neighbours under replace-one have the same size anyway.
_SIZE_IS_PUBLIC = (
    "- **Size of the data set:** the number of examples is public. Sampling rates, steps per epoch "
    "and often delta are computed from it and published, so it is not protected."
)

_ACCOUNTANTS = {
    "pld": "privacy loss distributions (dp-accounting)",
    "rdp": "Renyi differential privacy (dp-accounting)",
    "tcdp": "truncated concentrated differential privacy",
    "gdp": "Gaussian differential privacy",
}


def privacy_statement(
    ledger: Ledger,
    delta: float,
    accountant: str = "pld",
    not_counted: Sequence[str] = NOT_COUNTED,
) -> str:
    """Returns what a ledger guarantees, in prose, as Markdown.

    Args:
        ledger: what was released.
        delta: the target delta.
        accountant: as for `dpjax.accounting.epsilon`.
        not_counted: what the number leaves out.

    Example:
        >>> import dpjax
        >>> mechanism, sampling = dpjax.methods.dp_sgd(1.0), dpjax.sampling.Poisson.with_rate(0.01)
        >>> print(privacy_statement(Ledger("digits").add_steps(mechanism, sampling, 1000), 1e-5))
        # Privacy statement: digits
        <BLANKLINE>
        Everything released about digits is (1.829, 1e-05)-differentially private.
        <BLANKLINE>
        - **Protected unit:** one example.
        ...
    """
    spent = ledger.epsilon(delta, accountant)
    if spent.guarantee:
        claim = f"is ({rounded_up(spent)}, {rounded_up(delta)})-differentially private."
    else:
        figure = f"epsilon = {rounded_up(spent)} at delta = {rounded_up(delta)}"
        claim = f"has the figure {figure}: {spent.note}."
    relation = _RELATIONS[spent.relation].format(unit=ledger.unit)
    public = [_SIZE_IS_PUBLIC] if spent.relation == "add_or_remove_one" else []
    lines = [
        f"# Privacy statement: {ledger.dataset}",
        "",
        f"Everything released about {ledger.dataset} {claim}",
        "",
        f"- **Protected unit:** {ledger.unit}.",
        f"- **Relation:** {spent.relation.replace('_', ' ')}: {relation}.",
        *public,
        f"- **Accountant:** {_ACCOUNTANTS[accountant]}{_worth(spent)}.",
        "",
        "Released:",
        "",
        *(f"{i}. {_described(entry)}" for i, entry in enumerate(ledger.entries, start=1)),
        "" if ledger.entries else "(nothing)\n",
        "Not counted:",
        "",
        *(f"- {item}" for item in not_counted),
    ]
    return "\n".join(lines) + "\n"


def _worth(spent: Bound) -> str:
    if not spent.guarantee:
        return "; the figure is no guarantee"
    lower = f", and at least {rounded_down(spent.lower)}" if spent.lower > 0 else ""
    note = f"; {spent.note}" if spent.note else ""
    return f"; epsilon is an upper bound{lower}{note}"


def _described(entry: Steps | Query | Search) -> str:
    if isinstance(entry, Steps):
        since = f" from step {entry.start}" if entry.start else ""
        return f"{entry.steps} steps{since} of {_named(entry.mechanism)}; {_drawn(entry.sampling)}."
    if isinstance(entry, Search):
        score = (
            "scored without private data"
            if entry.scoring is None
            else (f"each scored by {entry.scoring.what}")
        )
        published = (
            "All its runs." if isinstance(entry.tuning, grid_composition) else ("Only its winner.")
        )
        return (
            f"A search by {entry.tuning!r} over runs of {entry.steps} steps of "
            f"{_named(entry.mechanism)}, {score}; {_drawn(entry.sampling)}. {published}"
        )
    if isinstance(entry, Query):
        return f"{entry.what}: {entry!r}."
    raise TypeError(f"{entry!r}: expected a ledger entry")


def _named(mechanism: Mechanism) -> str:
    name = mechanism.name or "a mechanism"
    noise = mechanism.noise_multiplier
    sigma = f"{noise:.6g}" if isinstance(noise, float) else f"{noise!r}"
    what = "gradients and the threshold's statistic" if mechanism.adaptive else "gradients"
    return f"{name} (noisy {what}, noise multiplier {sigma})"


def _drawn(sampling: Sampling) -> str:
    if isinstance(sampling, Poisson):
        return f"batches by Poisson sampling at rate {sampling.rate:.6g}"
    if isinstance(sampling, TruncatedPoisson):
        return (
            f"batches by Poisson sampling at rate {sampling.rate:.6g}, cut at random to "
            f"{sampling.max_size} of {sampling.dataset_size}"
        )
    if isinstance(sampling, FixedSize):
        return f"batches of {sampling.size} of {sampling.dataset_size}, without replacement"
    if isinstance(sampling, FullBatch):
        return "full batches, without amplification"
    raise TypeError(f"{sampling!r}: expected a sampling")
