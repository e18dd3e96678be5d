"""Methods that carry more than a threshold from step to step: momentum and AdaCliP."""

from dpjax import rules
from dpjax.adaclip import adaclip as preconditioner
from dpjax.gradients.groups import Groups
from dpjax.mechanism import Mechanism
from dpjax.momentum import inner_outer, stored
from dpjax.schedules import FloatOrSchedule

__all__ = ["adaclip", "psasc_momentum", "psasc_momentum_full_batch"]


def psasc_momentum(
    noise_multiplier: FloatOrSchedule | None = None,
    gamma0: float = 0.5,
    gamma1: float = 0.1,
    length: int = 1,
    r: float = 0.01,
    s: float = 0.9,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """DP-PSASC with momentum, inside the rule and after the noise, in a form that can be run.

    For example i at step k, with n_i = |m_i|, C = `threshold` and sigma = `noise_multiplier`:

        ``m_i = sum_l gamma0^(k - l) grad f(w_l, x_i)``  over this iterate and the last `length`,
        ``u_k = (sum_i C / (s n_i + r / (n_i + r)) m_i + N(0, (sigma C / s)^2 I)) / B``,
        ``M_k = (1 - gamma1) M_{k-1} + u_k``,  which is the update.

    Algorithm 3 as printed stores m_i for the whole data set and never uses the current gradient;
    see `dpjax.momentum.inner_outer`. The paper gives no values for gamma0, gamma1 and K0: the
    defaults are ours.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        gamma0: the inner decay, in (0, 1).
        gamma1: the outer rate, in (0, 1]; 1 is no outer momentum.
        length: the paper's K0, the number of earlier iterates, >= 1; a step costs K0 + 1 gradients.
        r: sets, with `s`, where the weight is largest, > 0; see `dpjax.rules.psasc`.
        s: the scaling coefficient, in (0, 1]; see `dpjax.rules.psasc`.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: `dpjax.rules.psasc` with the momentum `dpjax.momentum.inner_outer`.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C / s per example, since m_i depends on example i and released iterates alone.
        Relation: add or remove one example. Event: one Gaussian of noise multiplier sigma per step,
        under the sampling that drew the batch; momentum adds nothing to it. Not protected: the
        choice of hyper-parameters, if they were tuned on the same data; see
        `dpjax.accounting.tuning`.

    Example:
        >>> mechanism = psasc_momentum(noise_multiplier=1.0, length=2, s=0.5)
        >>> mechanism.momentum, mechanism.bound(1.0).item()
        (inner_outer(gamma0=0.5, length=2, gamma1=0.1), 2.0)

    Reference: Huang et al., Enhancing DP-SGD through Non-monotonous Adaptive Scaling Gradient
    Weight, 2024, algorithm 3, https://arxiv.org/abs/2411.03059
    """
    return Mechanism(
        rules.psasc(r, s),
        threshold,
        noise_multiplier,
        groups,
        momentum=inner_outer(gamma0, length, gamma1),
        name="psasc_momentum",
    )


def psasc_momentum_full_batch(
    noise_multiplier: FloatOrSchedule | None = None,
    *,
    dataset_size: int,
    gamma: float = 0.5,
    r: float = 0.01,
    s: float = 0.9,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """DP-PSASC with a momentum stored for every example, on full batches.

    ``m_i <- gamma g_i + (1 - gamma) m_i`` for every example, then
    ``(sum_i C / (s n_i + r / (n_i + r)) m_i + N(0, (sigma C / s)^2 I)) / N`` with n_i = |m_i|,
    C = `threshold`, sigma = `noise_multiplier` and N = `dataset_size`. The state takes N times the
    memory of the parameters. Algorithm 2 as printed uses m_i before it is computed.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        dataset_size: N; every step takes all N examples, in the same order.
        gamma: the weight of the newest gradient, in (0, 1]; 1 is no momentum.
        r: sets, with `s`, where the weight is largest, > 0; see `dpjax.rules.psasc`.
        s: the scaling coefficient, in (0, 1]; see `dpjax.rules.psasc`.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: `dpjax.rules.psasc` with the momentum `dpjax.momentum.stored`.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C / s per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, *without* amplification by sampling: every example takes part in
        every step, and any sampling but `dpjax.sampling.FullBatch` is refused. Not protected: the
        optimizer state, which holds unreleased per-example averages. Never publish it.

    Example:
        >>> mechanism = psasc_momentum_full_batch(noise_multiplier=1.0, dataset_size=100)
        >>> mechanism.momentum, mechanism.full_batch
        (stored(gamma=0.5, dataset_size=100), True)

    Reference: Huang et al., Enhancing DP-SGD through Non-monotonous Adaptive Scaling Gradient
    Weight, 2024, algorithm 2, https://arxiv.org/abs/2411.03059
    """
    return Mechanism(
        rules.psasc(r, s),
        threshold,
        noise_multiplier,
        groups,
        momentum=stored(gamma, dataset_size),
        name="psasc_momentum_full_batch",
    )


def adaclip(
    noise_multiplier: FloatOrSchedule | None = None,
    beta1: float = 0.9,
    beta2: float = 0.99,
    h_floor: float = 1e-5,
    h_ceiling: float = 1e-3,
    estimate: str = "per_example",
) -> Mechanism:
    """AdaCliP: clip gradients that were standardised, coordinate by coordinate, by private moments.

    With m and s^2 running estimates of the gradients' mean and variance and
    ``b = sqrt(s) sqrt(sum s)``: ``u_i = min(1, 1 / |v_i|) v_i`` where ``v_i = (g_i - m) / b``, and
    the update is ``b (sum_i u_i + N(0, sigma^2 I)) / B + m``. Both estimates follow from released
    gradients; see `dpjax.adaclip.adaclip` for how, and for where we differ from the paper.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        beta1: the decay of the mean, in [0, 1).
        beta2: the decay of the variance, in [0, 1).
        h_floor: the smallest variance, > 0.
        h_ceiling: the largest variance.
        estimate: "per_example" for our estimate of the variance, "published" for the paper's,
            which is smaller by a factor B and clamped before averaging.

    Returns:
        The mechanism: Abadi's rule at 1, with the preconditioner `dpjax.adaclip.adaclip`.

    Raises:
        ValueError: if a number is outside its range, `h_floor` exceeds `h_ceiling`, or `estimate`
            is unknown.

    Privacy:
        Bound: 1 per example, in standardised coordinates. Relation: add or remove one example.
        Event: one Gaussian of noise multiplier sigma per step, under the sampling that drew the
        batch; the moments are post-processing. Not protected: the moments, which are public; and
        the choice of `h_floor` and `h_ceiling`, if they were tuned on the same data.

    Example:
        >>> mechanism = adaclip(noise_multiplier=1.0, estimate="published")
        >>> mechanism.preconditioner.estimate
        'published'

    Reference: Pichapati et al., AdaCliP: Adaptive Clipping for Private SGD, 2019,
    https://arxiv.org/abs/1908.07643
    """
    return Mechanism(
        rules.abadi(),
        1.0,
        noise_multiplier,
        preconditioner=preconditioner(beta1, beta2, h_floor, h_ceiling, estimate),
        name="adaclip",
    )
