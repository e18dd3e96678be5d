"""Methods whose threshold adapts through a private statistic.

Each step releases a clipped gradient with noise multiplier sigma_T and a statistic of the norms
with sigma_S. Both together cost as much as one Gaussian of the total sigma,
``sigma^-2 = sigma_T^-2 + sigma_S^-2``; sigma is what `noise_multiplier` sets and calibration finds.
"""

from dpjax import _checks, rules, schedules, thresholds
from dpjax.gradients.groups import Groups
from dpjax.mechanism import Mechanism
from dpjax.schedules import FloatOrSchedule

__all__ = [
    "andrew",
    "auto_dp_sgd_sound",
    "dc_sgd_e",
    "dc_sgd_p",
    "global_adapt",
    "noise_decay",
    "van_der_veen",
]


def andrew(
    noise_multiplier: FloatOrSchedule | None = None,
    target: float = 0.5,
    lr: float = 0.2,
    c0: float = 1.0,
    sigma_b: float | None = None,
    groups: Groups = None,
) -> Mechanism:
    """Adaptive clipping: the threshold follows a quantile of the norms.

    ``(sum_i min(1, C / |g_i|) g_i + N(0, (sigma_T C)^2 I)) / B``, then with the noisy fraction b~
    of norms at most C, ``C <- C exp(-lr (b~ - target))``. Here ``sigma_S = 2 sigma_b`` and
    ``sigma_T = (sigma^-2 - sigma_S^-2)^(-1/2)``; see `dpjax.thresholds.quantile`.

    Args:
        noise_multiplier: the total sigma, a number or a schedule; None until `dpjax.calibrate`
            finds it.
        target: the paper's gamma, the quantile to follow, in (0, 1).
        lr: the paper's eta_C, the step size on the logarithm of C, > 0.
        c0: the first threshold, > 0.
        sigma_b: the standard deviation of the noise on the count; None takes B / 20.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with a `dpjax.thresholds.quantile`.

    Raises:
        ValueError: if a number is outside its range, or sigma exceeds sqrt(3)/2 of sigma_S: the
            gradient's own noise would more than double.

    Privacy:
        Bound: C per example for the gradient, 1/2 for the count. Relation: add or remove one
        example. Event: one Gaussian of noise multiplier sigma per step for both, under the sampling
        that drew the batch. Not protected: the thresholds, which are public; and the choice of
        `target` and `lr`, if they were tuned on the same data.

    Example:
        >>> mechanism = andrew(noise_multiplier=1.0, target=0.5)
        >>> mechanism.sigma_statistic(expected_batch_size=256)
        25.6

    Reference: Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021,
    https://arxiv.org/abs/1905.03871
    """
    threshold = thresholds.quantile(target, lr, c0, sigma_b)
    return Mechanism(rules.abadi(), threshold, noise_multiplier, groups, name="andrew")


def dc_sgd_p(
    noise_multiplier: FloatOrSchedule | None = None,
    p: float = 0.5,
    c0: float = 1.0,
    bins: int = 20,
    sigma_h: float | None = None,
    groups: Groups = None,
) -> Mechanism:
    """DC-SGD-P: the threshold is a percentile of the norms, read from a private histogram.

    ``(sum_i min(1, C / |g_i|) g_i + N(0, (sigma_T C)^2 I)) / B``, then C is the middle of the first
    bin at which the noisy histogram of the norms reaches a fraction p of its total. Here
    sigma_S = sigma_H and ``sigma_T = (sigma^-2 - sigma_H^-2)^(-1/2)``; see
    `dpjax.thresholds.dc_sgd_p`.

    Args:
        noise_multiplier: the total sigma, a number or a schedule; None until `dpjax.calibrate`
            finds it.
        p: the fraction of norms to leave unclipped, in (0, 1).
        c0: the first threshold, in [1e-8, 1e8].
        bins: the number of bins, in [2, 65536].
        sigma_h: sigma_H, the standard deviation of the noise on each bin; None takes the paper's
            choice: 5, or 8 when 2 <= sigma <= 3, or 12 when sigma > 3.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with a `dpjax.thresholds.dc_sgd_p`.

    Raises:
        ValueError: if a number is outside its range, or sigma exceeds sqrt(3)/2 of sigma_S: the
            gradient's own noise would more than double.

    Privacy:
        Bound: C per example for the gradient, 1 for the histogram. Relation: add or remove one
        example. Event: one Gaussian of noise multiplier sigma per step for both, under the sampling
        that drew the batch. Not protected: the thresholds, which are public; and the choice of p,
        if it was tuned on the same data.

    Example:
        >>> dc_sgd_p(noise_multiplier=1.0, p=0.3).sigma_statistic()
        5.0

    Reference: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient
    Norm Distribution Estimation, 2025, algorithms 1 to 3, https://arxiv.org/abs/2503.22988
    """
    threshold = thresholds.dc_sgd_p(p, c0, bins, sigma_h)
    return Mechanism(rules.abadi(), threshold, noise_multiplier, groups, name="dc_sgd_p")


def dc_sgd_e(
    noise_multiplier: FloatOrSchedule | None = None,
    c0: float = 1.0,
    bins: int = 20,
    sigma_h: float | None = None,
    negative: str = "nonneg",
    groups: Groups = None,
) -> Mechanism:
    """DC-SGD-E: the threshold minimises the expected squared error of the released gradient.

    ``(sum_i min(1, C / |g_i|) g_i + N(0, (sigma_T C)^2 I)) / B``, then C minimises the variance of
    the noise plus the squared bias of clipping, as a noisy histogram of the norms estimates them.
    Here sigma_S = sigma_H and ``sigma_T = (sigma^-2 - sigma_H^-2)^(-1/2)``; see
    `dpjax.thresholds.dc_sgd_e`.

    Args:
        noise_multiplier: the total sigma, a number or a schedule; None until `dpjax.calibrate`
            finds it.
        c0: the first threshold, in [1e-8, 1e8].
        bins: the number of bins, in [2, 65536].
        sigma_h: sigma_H, the standard deviation of the noise on each bin; None takes the paper's
            choice: 5, or 8 when 2 <= sigma <= 3, or 12 when sigma > 3.
        negative: how the error reads negative noisy bins: "nonneg" as 0, "raw" as they are (the
            authors' code), "threshold" all bins below 2 sigma_H as 0.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with a `dpjax.thresholds.dc_sgd_e`.

    Raises:
        ValueError: if a number is outside its range, or sigma exceeds sqrt(3)/2 of sigma_S: the
            gradient's own noise would more than double.

    Privacy:
        Bound: C per example for the gradient, 1 for the histogram. Relation: add or remove one
        example. Event: one Gaussian of noise multiplier sigma per step for both, under the sampling
        that drew the batch. Not protected: the thresholds, which are public.

    Example:
        >>> mechanism = dc_sgd_e(noise_multiplier=3.0)
        >>> mechanism.sigma_statistic(), round(float(mechanism.sigma_gradient(0)), 3)
        (8.0, 3.236)

    Reference: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient
    Norm Distribution Estimation, 2025, algorithms 1, 2 and 4, https://arxiv.org/abs/2503.22988
    """
    threshold = thresholds.dc_sgd_e(c0, bins, sigma_h, negative=negative)
    return Mechanism(rules.abadi(), threshold, noise_multiplier, groups, name="dc_sgd_e")


def van_der_veen(
    noise_multiplier: FloatOrSchedule | None = None,
    alpha: float = 1.0,
    kappa: float = 2.0,
    c0: float = 1.0,
    sigma_s: float | None = None,
    groups: Groups = None,
) -> Mechanism:
    """Adaptive clipping by the mean: the threshold is `alpha` times the private mean norm.

    ``(sum_i min(1, C / |g_i|) g_i + N(0, (sigma_T C)^2 I)) / B``, then
    ``C <- alpha (sum_i min(|g_i|, kappa C) + N(0, (sigma_S kappa C)^2)) / B``. Here
    ``sigma_T = (sigma^-2 - sigma_S^-2)^(-1/2)``; see `dpjax.thresholds.private_mean`.

    Args:
        noise_multiplier: the total sigma, a number or a schedule; None until `dpjax.calibrate`
            finds it.
        alpha: the ratio of the threshold to the mean norm, > 0.
        kappa: norms are cut at `kappa` times C in the mean; ``alpha kappa > 1``.
        c0: the first threshold, > 0.
        sigma_s: sigma_S, the noise multiplier of the mean; None takes B / 20.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule with a `dpjax.thresholds.private_mean`.

    Raises:
        ValueError: if a number is outside its range, or sigma exceeds sqrt(3)/2 of sigma_S: the
            gradient's own noise would more than double.

    Privacy:
        Bound: C per example for the gradient, kappa C for the sum of norms. Relation: add or remove
        one example. Event: one Gaussian of noise multiplier sigma per step for both, under the
        sampling that drew the batch. Not protected: the thresholds, which are public; and the
        choice of `alpha`, if it was tuned on the same data.

    Example:
        >>> van_der_veen(noise_multiplier=1.0).sigma_statistic(expected_batch_size=256)
        12.8

    Reference: van der Veen et al., Three Tools for Practical Differential Privacy, 2018,
    https://arxiv.org/abs/1812.02890
    """
    threshold = thresholds.private_mean(alpha, kappa, c0, sigma_s)
    return Mechanism(rules.abadi(), threshold, noise_multiplier, groups, name="van_der_veen")


def global_adapt(
    noise_multiplier: FloatOrSchedule | None = None,
    scale: float = 1.0,
    tau: float = 1.0,
    eta: float = 0.1,
    z0: float = 1.0,
    sigma_b: float | None = None,
    groups: Groups = None,
) -> Mechanism:
    """DP-SGD-Global-Adapt: like `global_`, with a z that adapts and long gradients shortened.

    ``(sum_i scale min(1 / z, 1 / |g_i|) g_i + N(0, (sigma_T scale)^2 I)) / B``, then with the noisy
    fraction f~ of norms above tau z, ``z <- z exp(-eta + f~)``. Here ``sigma_S = 2 sigma_b`` and
    ``sigma_T = (sigma^-2 - sigma_S^-2)^(-1/2)``; see `dpjax.thresholds.global_z`.

    Args:
        noise_multiplier: the total sigma, a number or a schedule; None until `dpjax.calibrate`
            finds it.
        scale: the length of the longest contribution, > 0.
        tau: the share of z that a norm is compared with, in (0, 1].
        eta: the paper's eta_z, how fast z falls while no norm exceeds it, in (0, 1).
        z0: the first z, > 0.
        sigma_b: the standard deviation of the noise on the count; None takes B / 20.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: `dpjax.rules.global_adapt` with a `dpjax.thresholds.global_z`.

    Raises:
        ValueError: if a number is outside its range, or sigma exceeds sqrt(3)/2 of sigma_S: the
            gradient's own noise would more than double.

    Privacy:
        Bound: `scale` per example for the gradient (sqrt(G) times that over G groups), 1/2 for the
        count. Relation: add or remove one example. Event: one Gaussian of noise multiplier sigma
        per step for both, under the sampling that drew the batch. Not protected: z, which is
        public; and the choice of `scale`, `tau` and `eta`, if they were tuned on the same data.

    Example:
        >>> mechanism = global_adapt(noise_multiplier=1.0, scale=0.5)
        >>> mechanism.bound(3.0).item(), mechanism.sigma_statistic(expected_batch_size=256)
        (0.5, 25.6)

    Reference: Esipova et al., Disparate Impact in Differential Privacy from Gradient Misalignment,
    2023, algorithm 1, https://arxiv.org/abs/2206.07737
    """
    threshold = thresholds.global_z(tau, eta, z0, sigma_b)
    rule = rules.global_adapt(scale)
    return Mechanism(rule, threshold, noise_multiplier, groups, name="global_adapt")


_DECAYS = ("linear", "time", "step", "exponential")


def auto_dp_sgd_sound(
    noise_multiplier: float | None = None,
    *,
    steps_per_epoch: float,
    epochs: int,
    decay: str = "step",
    scale: float = 1.0,
    c0: float = 1.0,
    sigma_s: float | None = None,
    groups: Groups = None,
) -> Mechanism:
    """Auto DP-SGD made sound: real clipping at `scale` times the *private* mean norm.

    ``(sum_i min(1, C / |g_i|) g_i + N(0, (sigma_T C)^2 I)) / B``, then C is `scale` times a noisy
    mean norm, in which norms are cut at 2 C / scale. The total sigma_t falls as in the paper, from
    `noise_multiplier` on (`noise_decay`), and ``sigma_T = (sigma_t^-2 - sigma_S^-2)^(-1/2)``.

    As printed, the method is not differentially private: it clips each example at a multiple of
    that example's own norm, which bounds nothing. `dpjax.papers` has that version, without a
    guarantee.

    Args:
        noise_multiplier: sigma_0, the first total noise multiplier; None until `dpjax.calibrate`
            finds it.
        steps_per_epoch: N / B, > 0.
        epochs: E, the number of epochs of the run; it sets the rate of the "time" decay.
        decay: how the variance falls: "linear" (in fact geometric), "time", "step" or
            "exponential".
        scale: the paper's scale factor W, the ratio of C to the mean norm, in (0, 1].
        c0: the first threshold, > 0.
        sigma_s: sigma_S, the noise multiplier of the mean; None takes B / 20.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule, a private threshold and decaying noise.

    Raises:
        ValueError: if a number is outside its range, `decay` is unknown, or sigma_0 exceeds
            sqrt(3)/2 of sigma_S: the gradient's own noise would more than double.

    Privacy:
        Bound: C per example for the gradient, 2 C / scale for the sum of norms. Relation: add or
        remove one example. Event: for both together, step t is one Gaussian of noise multiplier
        sigma_t, under the sampling that drew the batch; the accounting reads every step's own
        sigma_t. Not protected: the thresholds, which are public; and the choice of `decay` and
        `scale`, if they were tuned on the same data.

    Example:
        >>> mechanism = auto_dp_sgd_sound(2.0, steps_per_epoch=10, epochs=50)
        >>> [round(float(mechanism.sigma(t)), 3) for t in (0, 99, 100, 200)]
        [2.0, 2.0, 1.414, 1.0]

    Reference: Chilukoti et al., Auto DP-SGD: Dual Improvements of Privacy and Accuracy via
    Automatic Clipping Threshold and Noise Multiplier Estimation, 2023, table 1 (the decays),
    https://arxiv.org/abs/2312.02400; van der Veen et al., Three Tools for Practical Differential
    Privacy, 2018 (the private mean), https://arxiv.org/abs/1812.02890
    """
    sigma = noise_decay(decay, noise_multiplier, steps_per_epoch, epochs)
    scale = _checks.fraction("scale", scale, one=True)
    threshold = thresholds.private_mean(scale, 2 / scale, c0, sigma_s)
    return Mechanism(rules.abadi(), threshold, sigma, groups, name="auto_dp_sgd_sound")


def noise_decay(
    decay: str, sigma0: float | None, steps_per_epoch: float, epochs: int
) -> schedules.Schedule:
    """Returns one of the noise schedules of Auto DP-SGD's table 1, with the paper's rates.

    With e the epoch, from 0, the variance sigma_t^2 is ``sigma0^2`` times ``0.99^e`` ("linear"),
    ``1 / (1 + e sigma0 / epochs)`` ("time"), ``0.5^floor(e / 10)`` ("step") or ``exp(-0.1 e)``
    ("exponential").

    Args:
        decay: "linear" (in fact geometric), "time", "step" or "exponential".
        sigma0: the first noise multiplier; None until `dpjax.calibrate` finds it.
        steps_per_epoch: N / B, > 0.
        epochs: E, the number of epochs, which sets the rate of the "time" decay.

    Raises:
        ValueError: if a number is outside its range, or `decay` is unknown.

    Example:
        >>> noise_decay("step", 2.0, steps_per_epoch=10, epochs=50)
        step_decay(init=2.0, steps_per_epoch=10.0, rate=0.5, every=10)

    Reference: Chilukoti et al., Auto DP-SGD: Dual Improvements of Privacy and Accuracy via
    Automatic Clipping Threshold and Noise Multiplier Estimation, 2023, table 1,
    https://arxiv.org/abs/2312.02400
    """
    epochs = _checks.integer("epochs", epochs, at_least=1)
    _checks.choice("decay", decay, _DECAYS)
    if decay == "linear":
        return schedules.geometric(sigma0, steps_per_epoch)
    if decay == "time":
        return schedules.time_decay(sigma0, steps_per_epoch, epochs=epochs)
    if decay == "step":
        return schedules.step_decay(sigma0, steps_per_epoch)
    return schedules.exponential_decay(sigma0, steps_per_epoch)
