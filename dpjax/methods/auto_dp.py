"""Auto DP-SGD in a sound form."""

from dpjax import _checks, rules, schedules, thresholds
from dpjax.gradients.groups import Groups
from dpjax.mechanism import Mechanism

__all__ = ["auto_dp_sgd_sound", "noise_decay"]

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
