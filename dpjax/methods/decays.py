"""Methods whose threshold or noise follows a public schedule: Yu, Du, Lin, Zhang."""

from collections.abc import Sequence

from dpjax import _checks, rules, schedules
from dpjax.gradients.groups import Groups
from dpjax.mechanism import Mechanism
from dpjax.schedules import FloatOrSchedule

__all__ = ["du", "lin_decay", "lin_transfer", "yu", "zhang_adaptive"]


def yu(
    noise_multiplier: FloatOrSchedule | None = None,
    *,
    steps: int,
    c0: float = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """DP-SGD with Yu's decay: the threshold falls to one half over the run.

    ``(sum_i min(1, C_t / |g_i|) g_i + N(0, (sigma C_t)^2 I)) / B`` with
    ``C_t = c0 / min(2, 1 + t / steps)`` at step t. Lin et al., whose source this is, print 1/T for
    t/T.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        steps: T, the number of steps of the run.
        c0: C_0, the first threshold, > 0.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with a threshold that follows `dpjax.schedules.yu_linear`.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C_t per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch; the decay costs nothing,
        since it does not look at the data. Not protected: the choice of `c0`, if it was tuned on
        the same data; see `dpjax.accounting.tuning`.

    Example:
        >>> mechanism = yu(noise_multiplier=1.0, steps=100)
        >>> [round(float(mechanism.threshold(t)), 3) for t in (0, 50, 100)]
        [1.0, 0.667, 0.5]

    Reference: Yu, Zhang and Chen, Improve the Gradient Perturbation Approach for Differentially
    Private Optimization, NeurIPS workshop, 2018, as given by Lin et al., Understanding Adaptive
    Gradient Clipping in DP-SGD, Empirically, 2022, https://doi.org/10.1002/int.23001
    """
    curve = schedules.yu_linear(c0, steps)
    return Mechanism(rules.abadi(), curve, noise_multiplier, groups, name="yu")


def du(
    noise_multiplier: float | None = None,
    *,
    steps: int,
    c0: float = 1.0,
    rho_c: float = 0.5,
    rho_mu: float = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """Dynamic DP-SGD: threshold and noise both fall geometrically.

    ``(sum_i min(1, C_t / |g_i|) g_i + N(0, (sigma_t C_t)^2 I)) / B`` with
    ``C_t = c0 rho_c^(t / steps)`` and ``sigma_t = noise_multiplier rho_mu^(-t / steps)`` at step t.

    Args:
        noise_multiplier: sigma_0, the first noise multiplier; None until `dpjax.calibrate` finds
            it.
        steps: T, the number of steps of the run.
        c0: C_0, the first threshold, > 0.
        rho_c: the ratio of the last threshold to the first, in (0, 1].
        rho_mu: the ratio of the last 1/sigma to the first, >= 1; 1 keeps the noise constant.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule, threshold and noise both following `dpjax.schedules.du_decay`.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C_t per example. Relation: add or remove one example. Event: step t is one Gaussian
        of noise multiplier sigma_t, under the sampling that drew the batch; the accounting reads
        every step's own sigma_t. (The paper's figure, from the central limit of GDP, is an
        approximation, not a guarantee.) Not protected: the choice of `c0`, `rho_c` and `rho_mu`, if
        they were tuned on the same data.

    Example:
        >>> mechanism = du(noise_multiplier=1.0, steps=100, rho_c=0.25, rho_mu=2.0)
        >>> [round(float(mechanism.threshold(t)), 3) for t in (0, 50, 100)]
        [1.0, 0.5, 0.25]
        >>> [round(float(mechanism.sigma(t)), 3) for t in (0, 50, 100)]
        [1.0, 0.707, 0.5]

    Reference: Du et al., Dynamic Differential-Privacy Preserving SGD, 2021,
    https://arxiv.org/abs/2111.00173
    """
    if not _checks.normal("rho_mu", rho_mu) >= 1:
        raise ValueError(f"rho_mu = {rho_mu!r}: expected a number >= 1")
    sigma = schedules.du_decay(noise_multiplier, 1 / rho_mu, steps)
    curve = schedules.du_decay(c0, rho_c, steps)
    return Mechanism(rules.abadi(), curve, sigma, groups, name="du")


def lin_decay(
    noise_multiplier: FloatOrSchedule | None = None,
    *,
    steps_per_epoch: float,
    c0: float = 1.0,
    exponent: float = 0.5,
    groups: Groups = None,
) -> Mechanism:
    """Lin's Decay: the threshold falls as a power of the epoch.

    ``(sum_i min(1, C_e / |g_i|) g_i + N(0, (sigma C_e)^2 I)) / B`` with
    ``C_e = c0 / e^exponent`` in epoch e, from 1.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        steps_per_epoch: N / B, > 0.
        c0: C_0, the threshold of the first epoch, > 0. The paper finds it on a public data set.
        exponent: the paper's a, > 0.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with a threshold that follows `dpjax.schedules.power_decay`.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C_e per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch; the decay costs nothing,
        since it does not look at the data. Not protected: the choice of `c0`, if it was made on the
        private data; see `dpjax.accounting.tuning`.

    Example:
        >>> mechanism = lin_decay(noise_multiplier=1.0, steps_per_epoch=10, c0=2.0)
        >>> [round(float(mechanism.threshold(t)), 3) for t in (0, 10, 30)]
        [2.0, 1.414, 1.0]

    Reference: Lin et al., Understanding Adaptive Gradient Clipping in DP-SGD, Empirically, 2022,
    section 4.3, https://doi.org/10.1002/int.23001
    """
    curve = schedules.power_decay(c0, steps_per_epoch, exponent)
    return Mechanism(rules.abadi(), curve, noise_multiplier, groups, name="lin_decay")


def lin_transfer(
    noise_multiplier: FloatOrSchedule | None = None,
    *,
    thresholds: Sequence[float],
    steps_per_epoch: float,
    groups: Groups = None,
) -> Mechanism:
    """Lin's Transfer: one threshold per epoch, found on a public data set.

    ``(sum_i min(1, C_e / |g_i|) g_i + N(0, (sigma C_e)^2 I)) / B`` with ``C_e = thresholds[e]`` in
    epoch e, from 0; the last one is held.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        thresholds: the thresholds, a list or tuple of numbers > 0, one per epoch.
        steps_per_epoch: N / B, > 0.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with a threshold read from a `dpjax.schedules.table`.

    Raises:
        TypeError: if `thresholds` is not a list or tuple.
        ValueError: if a number is outside its range, or `thresholds` is empty.

    Privacy:
        Bound: C_e per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch. Not protected: the data
        that `thresholds` were found on. They must be public; thresholds searched for on the private
        data would void the guarantee.

    Example:
        >>> mechanism = lin_transfer(1.0, thresholds=[2.0, 1.5, 1.0], steps_per_epoch=10)
        >>> [float(mechanism.threshold(t)) for t in (0, 10, 99)]
        [2.0, 1.5, 1.0]

    Reference: Lin et al., Understanding Adaptive Gradient Clipping in DP-SGD, Empirically, 2022,
    section 4.3, https://doi.org/10.1002/int.23001
    """
    if not isinstance(thresholds, list | tuple):
        raise TypeError(f"thresholds = {thresholds!r}: expected a list of numbers, one per epoch")
    curve = schedules.table(tuple(thresholds), steps_per_epoch)
    return Mechanism(rules.abadi(), curve, noise_multiplier, groups, name="lin_transfer")


def zhang_adaptive(
    noise_multiplier: float | None = None,
    *,
    steps_per_epoch: float,
    threshold: FloatOrSchedule = 1.0,
    rate: float = 0.99,
    groups: Groups = None,
) -> Mechanism:
    """Adaptive DP-SGD: the variance of the noise falls by the factor `rate` every epoch.

    ``(sum_i min(1, C / |g_i|) g_i + N(0, (sigma_e C)^2 I)) / B`` with C = `threshold` and
    ``sigma_e = noise_multiplier rate^(e / 2)`` in epoch e, from 0.

    Args:
        noise_multiplier: sigma_0, the first noise multiplier; None until `dpjax.calibrate` finds
            it.
        steps_per_epoch: N / B, > 0.
        threshold: C, a number or a schedule.
        rate: R, the factor on the variance, in (0, 1].
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with noise that follows `dpjax.schedules.geometric`.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C per example. Relation: add or remove one example. Event: a step in epoch e is one
        Gaussian of noise multiplier sigma_e, under the sampling that drew the batch; the accounting
        reads every step's own. Not protected: the choice of C and `rate`, if they were tuned on the
        same data; see `dpjax.accounting.tuning`.

    Example:
        >>> mechanism = zhang_adaptive(noise_multiplier=2.0, steps_per_epoch=10, rate=0.25)
        >>> [float(mechanism.sigma(t)) for t in (0, 10, 20)]
        [2.0, 1.0, 0.5]

    Reference: Zhang et al., Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data,
    WACV 2021,
    https://openaccess.thecvf.com/content/WACV2021/html/Zhang_Adaptive_Privacy_Preserving_Deep_Learning_Algorithms_for_Medical_Data_WACV_2021_paper.html
    """
    sigma = schedules.geometric(noise_multiplier, steps_per_epoch, rate)
    return Mechanism(rules.abadi(), threshold, sigma, groups, name="zhang_adaptive")
