"""Figures of other libraries, recorded once. sigma is std / L2 change by adding one example.

Opacus and prv-accountant, in an environment of their own (no torch is needed for accountants):

    pip install numpy==2.4.6 scipy==1.17.1
    pip install --no-deps opacus==1.6.0 prv-accountant==0.2.0

Opacus, with its package and its optimizers stubbed, since both import torch:

    opacus, optimizers = ModuleType("opacus"), ModuleType("opacus.optimizers")
    opacus.__path__ = [str(importlib.metadata.distribution("opacus").locate_file("opacus"))]
    optimizers.DPOptimizer = object
    sys.modules |= {"opacus": opacus, "opacus.optimizers": optimizers}
    from opacus.accountants import PRVAccountant, RDPAccountant
    accountant.history = [(sigma, q, count), ...]
    RDPAccountant: epsilon = accountant.get_epsilon(delta)
    PRVAccountant: lower, epsilon, upper = accountant._get_dprv(0.01, delta / 1000)
        .compute_epsilon(delta, delta / 1000, 0.01), whose upper is its get_epsilon(delta)

prv-accountant, for the removal of an example:

    PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(q, sigma), ...],
        max_self_compositions=counts, eps_error=5e-4, delta_error=delta / 1e4,
    ).compute_epsilon(delta, counts)

dp-accounting: numbers that stand literally in the test files of its wheel, dp-accounting==0.6.0. Of
sampling without replacement and of repeat-and-select these hold no number (trivial cases and
formulas only), nor does gaussian_mechanism_test.py (round trips).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recorded:
    """Epsilon at delta of Poisson-subsampled Gaussian steps, for adding or removing an example.

    sigma is one number, or (sigma, count) pairs whose counts sum to `steps`. lower and upper are
    the library's own bounds, and `tolerance` (absolute, of epsilon) what its number is good for:
    the truncation of its series, its eps_error, its test's tolerance or its discretisation.
    """

    library: str
    version: str
    accountant: str
    q: float
    sigma: float | tuple[tuple[float, int], ...]
    steps: int
    delta: float
    epsilon: float
    source: str
    lower: float | None = None
    upper: float | None = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class RecordedRdp:
    """Rényi divergence of `steps` Poisson-subsampled Gaussian steps, to a relative `tolerance`.

    Only an upper bound where `bound`: at fractional orders dp-accounting sums the absolute values
    of an alternating series.
    """

    library: str
    version: str
    q: float
    sigma: float
    steps: int
    order: float
    rdp: float
    source: str
    tolerance: float
    bound: bool


@dataclass(frozen=True)
class RecordedConversion:
    """Epsilon at delta of the Rényi divergences `rdp` at `orders`."""

    library: str
    version: str
    orders: tuple[float, ...]
    rdp: tuple[float, ...]
    delta: float
    epsilon: float
    source: str
    tolerance: float


MNIST_Q, MNIST_STEPS, MNIST_DELTA = 256 / 60_000, 2_344, 1 / 60_000
THREE_SIGMAS = ((1.5, 800), (1.0, 800), (0.8, 744))

# RDPAccountant.DEFAULT_ALPHAS: 11 is left out.
OPACUS_ORDERS = (*(1 + x / 10.0 for x in range(1, 100)), *(float(x) for x in range(12, 64)))


def _opacus(q, sigma, steps, delta, rdp, prv):
    library = ("opacus", "1.6.0")
    lower, estimate, upper = prv
    return (
        Recorded(
            *(*library, "rdp", q, sigma, steps, delta, rdp),
            source="RDPAccountant.get_epsilon",
            tolerance=1e-9,
        ),
        Recorded(
            *(*library, "prv", q, sigma, steps, delta, estimate),
            source="PRVAccountant, eps_error 0.01, delta_error delta/1000",
            lower=lower,
            upper=upper,
            tolerance=0.01,
        ),
    )


def _prv(q, sigma, steps, delta, lower, estimate, upper):
    return Recorded(
        *("prv-accountant", "0.2.0", "prv", q, sigma, steps, delta, estimate),
        source="PRVAccountant.compute_epsilon, eps_error 5e-4, delta_error delta/1e4",
        lower=lower,
        upper=upper,
        tolerance=5e-4,
    )


def _google(accountant, q, sigma, steps, delta, epsilon, source, tolerance):
    return Recorded(
        *("dp-accounting", "0.6.0", accountant, q, sigma, steps, delta, epsilon, source),
        tolerance=tolerance,
    )


def _google_rdp(order, rdp):
    return RecordedRdp(
        *("dp-accounting", "0.6.0", 0.01, 2.5, 50, order, rdp),
        source="rdp_privacy_accountant_test.py: test_compute_rdp_poisson_sampled_gaussian",
        tolerance=1e-8,
        bound=not order.is_integer(),
    )


_MNIST = (MNIST_STEPS, MNIST_DELTA)

OPACUS = (
    *_opacus(
        *(MNIST_Q, 1.12866, *_MNIST),
        rdp=1.0000026276514706,
        prv=(0.8355458281866287, 0.845610813823339, 0.8556758612788105),
    ),
    *_opacus(
        *(MNIST_Q, 0.84140, *_MNIST),
        rdp=1.999969594766919,
        prv=(1.5657915542301586, 1.5759252889446582, 1.586059157615139),
    ),
    *_opacus(
        *(MNIST_Q, 0.66790, *_MNIST),
        rdp=4.00002084217653,
        prv=(3.24600487733149, 3.2563128770022187, 3.266621184589663),
    ),
    *_opacus(
        *(MNIST_Q, 0.62945, *_MNIST),
        rdp=4.856491601346219,
        prv=(3.989613708917676, 3.999983000654527, 4.010352658957831),
    ),
    *_opacus(
        *(MNIST_Q, 0.5436, *_MNIST),
        rdp=7.989883151483771,
        prv=(6.704244820380525, 6.714816644348243, 6.725389032104529),
    ),
    *_opacus(
        *(MNIST_Q, THREE_SIGMAS, *_MNIST),
        rdp=1.9052401364473401,
        prv=(1.3027496826012213, 1.312888778241678, 1.323028024651222),
    ),
    *_opacus(
        *(0.1, 2.0, 100, 1e-5),
        rdp=2.5805688086608938,
        prv=(2.3272490675855866, 2.337402032848206, 2.347555316412645),
    ),
    *_opacus(
        *(0.01, 1.0, 5, 1e-5),
        rdp=1.0078655965963454,
        prv=(0.3064350654563973, 0.31650975559418076, 0.32658444015376414),
    ),
    *_opacus(
        *(0.05, 5.0, 1_000, 1e-6),
        rdp=1.509749781978923,
        prv=(1.3902279030891243, 1.4002994903932706, 1.410371139800442),
    ),
)

PRV_ACCOUNTANT = (
    _prv(MNIST_Q, 1.12866, *_MNIST, 0.845098347041184, 0.8456048483517651, 0.8461113502784338),
    _prv(MNIST_Q, THREE_SIGMAS, *_MNIST, 1.312371767563522, 1.3128856840353744, 1.3133996019968355),
    _prv(0.1, 2.0, 100, 1e-5, 2.3368842871384152, 2.3373995987981564, 2.3379149119350564),
    _prv(0.01, 1.0, 5, 1e-5, 0.31599348688878, 0.316501006249053, 0.3170085255527856),
    _prv(0.05, 5.0, 1_000, 1e-6, 1.3997875406893172, 1.400294702608426, 1.4008018652130674),
)

DP_ACCOUNTING = (
    _google(
        *("pld", 1.0, 3**0.5, 3, 0.126936, 1.0),
        source="pld_privacy_accountant_test.py: test_gaussian_basic",
        tolerance=1e-3,
    ),
    _google(
        *("pld", 0.2, 0.5, 3, 0.15594, 1.0),
        source="pld_privacy_accountant_test.py: test_poisson_subsampled_gaussian",
        tolerance=1e-3,
    ),
    _google(
        *("pld", 1.0, 1 / 3, 1, 0.78760074, 1.0),
        source="accountant_test.py: test_get_smallest_gaussian_noise, base",
        tolerance=1e-6,
    ),
    _google(
        *("pld", 1.0, 10 / 6, 25, 0.78760074, 1.0),
        source="accountant_test.py: test_get_smallest_gaussian_noise, varying_sensitivity_and_"
        "num_queries",
        tolerance=1e-6,
    ),
    _google(
        *("pld", 0.01, 0.67379294682, 1, 1e-5, 1.0),
        source="accountant_test.py: test_get_smallest_subsampled_gaussian_noise, base",
        tolerance=1e-5,
    ),
    _google(
        *("pld", 0.001, 3.20956502598 / 6, 25, 1e-5, 1.0),
        source="accountant_test.py: test_get_smallest_subsampled_gaussian_noise, varying_"
        "sensitivity_and_num_queries",
        tolerance=1e-5,
    ),
    # At the orders 0.001 i, i = 1000..99999.
    _google(
        *("rdp", 1.0, 4.530877117, 1, 1e-6, 1.0),
        source="rdp_privacy_accountant_test.py: test_compute_epsilon_delta_gaussian",
        tolerance=1e-7,
    ),
)

ROWS = (*OPACUS, *PRV_ACCOUNTANT, *DP_ACCOUNTING)

RDP_ROWS = (
    _google_rdp(1.5, 6.70579741e-04),
    _google_rdp(2.5, 1.08548710e-03),
    _google_rdp(5.0, 2.18075656e-03),
    _google_rdp(50.0, 2.38460375e-02),
    _google_rdp(100.0, 1.67416308e02),
)

CONVERSION_ROWS = (
    RecordedConversion(
        *("dp-accounting", "0.6.0", tuple(float(a) for a in range(2, 33)), (1.1,) * 31, 1e-5),
        epsilon=1.32783806176,
        source="rdp_privacy_accountant_test.py: test_compute_epsilon_delta_pure_dp",
        tolerance=1e-7,
    ),
)
