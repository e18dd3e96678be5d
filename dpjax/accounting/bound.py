"""Epsilon and delta of a mechanism, as floats that record how they were computed."""

import decimal
import math
from collections.abc import Sequence

import dp_accounting
from dp_accounting import NeighboringRelation

from dpjax import _checks
from dpjax.accounting import gdp, pld, rdp, tcdp
from dpjax.accounting.events import event
from dpjax.accounting.gaussians import PoissonSampling, leaves
from dpjax.accounting.missing_mass import delta_left, with_missing_mass
from dpjax.accounting.relation import check_accountant
from dpjax.mechanism import Mechanism
from dpjax.sampling import Sampling

__all__ = [
    "Bound",
    "delta",
    "delta_of",
    "epsilon",
    "epsilon_of",
    "make_bound",
    "rounded_down",
    "rounded_up",
    "upper_epsilon_of",
]


class Bound(float):
    """An upper bound on epsilon or delta: a float that records how it was computed.

    Attributes:
        lower: a lower bound on the same quantity; 0 if none is computed.
        accountant: "pld", "rdp", "tcdp" or "gdp".
        relation: the neighbouring relation, "add_or_remove_one" or "replace_one".
        guarantee: False if the number is an approximation or not proven.
        note: a caveat to report with the number, such as why it is not a guarantee; usually empty.

    Example:
        >>> import dpjax
        >>> sampling = dpjax.sampling.Poisson.with_rate(0.01)
        >>> figure = epsilon(dpjax.methods.dp_sgd(1.0), sampling, 1000, 1e-5, accountant="gdp")
        >>> figure.guarantee, figure > 0
        (False, True)
    """

    lower: float = 0.0
    accountant: str = ""
    relation: str = ""
    guarantee: bool = True
    note: str = ""

    @property
    def upper(self) -> float:
        """The bound itself, as a plain float."""
        return float(self)


def epsilon(
    mechanism: Mechanism,
    sampling: Sampling,
    steps: int,
    delta: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: str | NeighboringRelation | None = None,
    orders: Sequence[float] | None = None,
) -> Bound:
    """Returns the epsilon of `steps` steps of a mechanism at `delta`.

    Args:
        mechanism: the mechanism that ran.
        sampling: the sampling that drew its batches.
        steps: how many steps were released, >= 1.
        delta: the target delta, in (0, 1).
        accountant: "pld" (tight, with a lower bound), "rdp" (used by most papers), "tcdp" (only
            where its lemma applies) or "gdp" (with sampling an approximation, not a guarantee).
        start: how many steps of this run were released before; schedules are read from there.
        relation: "add_or_remove_one", "replace_one", or None for that of the sampling: replace-one
            for `FixedSize`, add-or-remove-one otherwise.
        orders: the Renyi orders for "rdp"; None takes dp-accounting's.

    Returns:
        A `Bound`: a float with its lower bound, accountant, relation and whether it is a guarantee.

    Raises:
        TypeError: if `mechanism` is not a `Mechanism`, or the sampling is unknown.
        ValueError: if the mechanism has no noise or is not calibrated, if the accountant knows no
            bound for this sampling and relation, or if a number is outside its range.

    Privacy:
        Relation: `relation`. Event: that of `event`, one Gaussian per step under the sampling. Not
        counted: the choice of hyper-parameters, other runs on the same data, and anything else
        computed from the data. See `Ledger`.

    Example:
        >>> import dpjax
        >>> sampling = dpjax.sampling.Poisson.with_rate(0.01)
        >>> spent = epsilon(dpjax.methods.dp_sgd(1.0), sampling, steps=1000, delta=1e-5)
        >>> print(f"{spent:.2f}, at least {spent.lower:.2f}, under {spent.relation}")
        1.83, at least 1.82, under add_or_remove_one

    Reference: "pld": Doroshenko et al., Connect the Dots: Tighter Discrete Approximations of
    Privacy Loss Distributions, 2022, https://arxiv.org/abs/2207.04380; "rdp": Mironov, Talwar and
    Zhang, Renyi Differential Privacy of the Sampled Gaussian Mechanism, 2019,
    https://arxiv.org/abs/1908.10530; "tcdp": Bun et al., Composable and Versatile Privacy via
    Truncated CDP, 2018, https://doi.org/10.1145/3188745.3188946; "gdp": Dong, Roth and Su, Gaussian
    Differential Privacy, 2019, https://arxiv.org/abs/1905.02383
    """
    happened = event(
        mechanism,
        sampling,
        steps,
        start,
        relation=relation,
        accountant=check_accountant(accountant),
    )
    return epsilon_of(happened, happened.neighboring_relation, delta, accountant, orders)


def delta(
    mechanism: Mechanism,
    sampling: Sampling,
    steps: int,
    epsilon: float,
    accountant: str = "pld",
    *,
    start: int = 0,
    relation: str | NeighboringRelation | None = None,
    orders: Sequence[float] | None = None,
) -> Bound:
    """Returns the delta of `steps` steps of a mechanism at `epsilon`.

    Args:
        mechanism: the mechanism that ran.
        sampling: the sampling that drew its batches.
        steps: how many steps were released, >= 1.
        epsilon: the epsilon at which delta is wanted, >= 0.
        accountant: as for `epsilon`.
        start: how many steps of this run were released before.
        relation: as for `epsilon`.
        orders: as for `epsilon`.

    Returns:
        A `Bound`: a float with its accountant, relation and whether it is a guarantee.

    Raises:
        TypeError: as for `epsilon`.
        ValueError: as for `epsilon`.

    Privacy:
        As for `epsilon`: these steps are counted, and nothing else.

    Example:
        >>> import dpjax
        >>> mechanism = dpjax.methods.dp_sgd(noise_multiplier=1.0)
        >>> f"{delta(mechanism, dpjax.sampling.Poisson.with_rate(0.01), 1000, epsilon=2.0):.1e}"
        '2.7e-06'

    Reference: the accountants' papers are those of `epsilon`; the delta of a privacy loss
    distribution is Koskela, Jalko and Honkela, Computing Tight Differential Privacy Guarantees
    Using FFT, 2020, https://arxiv.org/abs/1906.03049
    """
    happened = event(
        mechanism,
        sampling,
        steps,
        start,
        relation=relation,
        accountant=check_accountant(accountant),
    )
    return delta_of(happened, happened.neighboring_relation, epsilon, accountant, orders)


def epsilon_of(
    happened: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    delta: float,
    accountant: str,
    orders: Sequence[float] | None = None,
) -> Bound:
    """Returns the epsilon of an event that was written for this accountant.

    Args:
        happened: the event, as `event` returns it for this accountant.
        relation: the neighbouring relation.
        delta: the target delta, in (0, 1).
        accountant: "pld", "rdp", "tcdp" or "gdp".
        orders: the Renyi orders for "rdp"; None takes dp-accounting's.

    Raises:
        ValueError: if a number is outside its range, or the accountant has no bound for the event.
    """
    delta = _checks.fraction("delta", delta)
    _check_orders(orders, accountant)
    left, said = delta_left(happened, relation, delta, accountant)
    if accountant == "pld":
        bracket = pld.pld_bracket(happened, relation, left, delta - left)
        return make_bound(bracket.upper, accountant, relation, bracket.lower, said)
    value = upper_epsilon_of(happened, relation, delta, accountant, orders)
    return _noted(value, accountant, relation, happened, said)


def upper_epsilon_of(
    happened: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    delta: float,
    accountant: str,
    orders: Sequence[float] | None = None,
) -> float:
    """Returns the number of `epsilon_of` without its lower bound, faster for "pld".

    Args:
        happened: the event, as `event` returns it for this accountant.
        relation: the neighbouring relation.
        delta: the target delta, in (0, 1).
        accountant: "pld", "rdp", "tcdp" or "gdp".
        orders: the Renyi orders for "rdp"; None takes dp-accounting's.

    Raises:
        ValueError: if a number is outside its range, or the accountant has no bound for the event.
    """
    check_accountant(accountant)
    _check_orders(orders, accountant)
    delta, _ = delta_left(happened, relation, delta, accountant)
    if accountant == "pld":
        return pld.pld_upper(happened, relation, delta)
    if accountant == "rdp":
        return rdp.rdp_epsilon(happened, relation, delta, rdp.ORDERS if orders is None else orders)
    if accountant == "tcdp":
        return tcdp.tcdp_epsilon(tcdp.tcdp(happened, relation), delta)
    return gdp.gdp_epsilon(gdp.gdp_mu(happened, relation)[0], delta)


def delta_of(
    happened: dp_accounting.DpEvent,
    relation: NeighboringRelation,
    epsilon: float,
    accountant: str,
    orders: Sequence[float] | None = None,
) -> Bound:
    """Returns the delta of an event that was written for this accountant.

    Args:
        happened: the event, as `event` returns it for this accountant.
        relation: the neighbouring relation.
        epsilon: the epsilon at which delta is wanted, >= 0.
        accountant: "pld", "rdp", "tcdp" or "gdp".
        orders: the Renyi orders for "rdp"; None takes dp-accounting's.

    Raises:
        ValueError: if a number is outside its range, or the accountant has no bound for the event.
    """
    epsilon = _checks.non_negative("epsilon", epsilon)
    check_accountant(accountant)
    _check_orders(orders, accountant)
    if accountant == "pld":
        value = pld.pld_delta(happened, relation, epsilon)
    elif accountant == "rdp":
        value = rdp.rdp_delta(happened, relation, epsilon, rdp.ORDERS if orders is None else orders)
    elif accountant == "tcdp":
        value = tcdp.tcdp_delta(tcdp.tcdp(happened, relation), epsilon)
    else:
        value = gdp.gdp_delta(gdp.gdp_mu(happened, relation)[0], epsilon)
    value, said = with_missing_mass(happened, relation, value, accountant)
    return _noted(value, accountant, relation, happened, said)


def _noted(
    value: float,
    accountant: str,
    relation: NeighboringRelation,
    happened: dp_accounting.DpEvent,
    said: str,
) -> Bound:
    doubt = _doubt(happened, accountant)
    note = "; ".join(words for words in (doubt, said) if words)
    return make_bound(value, accountant, relation, note=note, guarantee=not doubt)


def make_bound(
    value: float,
    accountant: str,
    relation: NeighboringRelation,
    lower: float = 0.0,
    note: str = "",
    *,
    guarantee: bool = True,
) -> Bound:
    """Returns a `Bound` with its attributes.

    Args:
        value: the bound itself.
        accountant: the accountant that computed it.
        relation: the neighbouring relation.
        lower: a lower bound on the same quantity.
        note: a caveat to report with the number.
        guarantee: whether the number is a proven bound.

    Raises:
        ValueError: if `value` is NaN.
    """
    if math.isnan(value):
        raise ValueError(f"accountant = {accountant!r} gave NaN; expected another one")
    bound = Bound(value)
    bound.lower, bound.accountant, bound.relation = lower, accountant, relation.name.lower()
    bound.guarantee, bound.note = guarantee, note
    return bound


def _doubt(happened: dp_accounting.DpEvent, accountant: str) -> str:
    """Returns why a number is not a guarantee; empty if it is one."""
    samplings = [gaussians.sampling for gaussians in leaves(happened).gaussians]
    sampled = [sampling for sampling in samplings if sampling != PoissonSampling(1.0)]
    if accountant == "gdp" and sampled:
        return gdp.APPROXIMATION
    if accountant == "tcdp" and any(isinstance(sampling, PoissonSampling) for sampling in sampled):
        return tcdp.NOT_PROVEN
    return ""


def rounded_up(value: float, digits: int = 4) -> str:
    """Formats a number, rounded up, so that a printed epsilon is never below the true one.

    Args:
        value: the number.
        digits: how many significant digits.

    Example:
        >>> rounded_up(1.82831), rounded_up(12.0), rounded_up(2e-6)
        ('1.829', '12', '2e-06')
    """
    return _rounded(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """Formats a number, rounded down, so that a printed lower bound is never above the true one.

    Args:
        value: the number.
        digits: how many significant digits.

    Example:
        >>> rounded_down(1.82889)
        '1.828'
    """
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, side: str) -> str:
    value = float(value)
    nearest = f"{value:.{digits}g}"
    # A number that prints exactly stays, even if its binary form is slightly off, as for 2e-6.
    if float(nearest) == value or not 0 < value < math.inf:
        return nearest
    exact = decimal.Decimal(value)
    last = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(last, side)):.{digits + 1}g}"


def _check_orders(orders: Sequence[float] | None, accountant: str) -> None:
    if orders is None:
        return
    if accountant != "rdp":
        raise ValueError(f"orders with accountant = {accountant!r}: expected 'rdp'")
    if not len(orders) or not all(1 < order < math.inf for order in orders):
        raise ValueError(f"orders = {orders!r}: expected finite numbers > 1")
