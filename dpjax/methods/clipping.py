"""Methods with a fixed threshold: DP-SGD and the rules that replace its clipping."""

from dpjax import rules
from dpjax.gradients.groups import Groups
from dpjax.mechanism import Mechanism
from dpjax.schedules import FloatOrSchedule

__all__ = ["auto_s", "auto_v", "dp_sgd", "global_", "psac", "psasc"]


def dp_sgd(
    noise_multiplier: FloatOrSchedule | None = None,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """DP-SGD: clip every gradient to norm C, sum, add Gaussian noise.

    ``(sum_i min(1, C / |g_i|) g_i + N(0, (sigma C)^2 I)) / B`` with C = `threshold`,
    sigma = `noise_multiplier` and B the expected batch size.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: Abadi's rule at a threshold of C.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch. Not protected: the choice
        of C, if it was tuned on the same data; see `dpjax.accounting.tuning`.

    Example:
        >>> import dpjax
        >>> mechanism = dp_sgd(noise_multiplier=1.0, threshold=0.5)
        >>> mechanism
        Mechanism(rule=abadi(), threshold=0.5, noise_multiplier=1.0, name='dp_sgd')
        >>> sampling = dpjax.sampling.Poisson(batch_size=600, dataset_size=60_000)
        >>> print(f"{dpjax.epsilon(mechanism, sampling, steps=1000, delta=1e-5):.2f}")
        1.83

    Reference: Abadi et al., Deep Learning with Differential Privacy, 2016,
    https://arxiv.org/abs/1607.00133
    """
    return Mechanism(rules.abadi(), threshold, noise_multiplier, groups, name="dp_sgd")


def auto_v(
    noise_multiplier: FloatOrSchedule | None = None,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """AUTO-V: normalise every gradient to length C, so that C need not be tuned.

    ``(sum_i (C / |g_i|) g_i + N(0, (sigma C)^2 I)) / B`` with C = `threshold`,
    sigma = `noise_multiplier` and B the expected batch size. Under SGD, C only rescales the
    learning rate; under Adam it all but cancels.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: the rule `dpjax.rules.auto_v` at a threshold of C.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch. Not protected: other
        hyper-parameters, if they were tuned on the same data; see `dpjax.accounting.tuning`.

    Example:
        >>> auto_v(noise_multiplier=1.0)
        Mechanism(rule=auto_v(), threshold=1.0, noise_multiplier=1.0, name='auto_v')

    Reference: Bu et al., Automatic Clipping: Differentially Private Deep Learning Made Easier and
    Stronger, 2023, section 3, https://arxiv.org/abs/2206.07136
    """
    return Mechanism(rules.auto_v(), threshold, noise_multiplier, groups, name="auto_v")


def auto_s(
    noise_multiplier: FloatOrSchedule | None = None,
    gamma: float = 0.01,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """AUTO-S: normalise every gradient, with a constant that lets short ones stay shorter.

    ``(sum_i C / (|g_i| + gamma) g_i + N(0, (sigma C)^2 I)) / B`` with C = `threshold`,
    sigma = `noise_multiplier` and B the expected batch size. DP-NSGD is the same method, with r for
    gamma.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        gamma: the stability constant, > 0.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: the rule `dpjax.rules.auto_s` at a threshold of C.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch. Not protected: gamma and
        other hyper-parameters, if they were tuned on the same data; see `dpjax.accounting.tuning`.

    Example:
        >>> auto_s(noise_multiplier=1.0)
        Mechanism(rule=auto_s(gamma=0.01), threshold=1.0, noise_multiplier=1.0, name='auto_s')

    Reference: Bu et al., Automatic Clipping: Differentially Private Deep Learning Made Easier and
    Stronger, 2023, equation 4.1, https://arxiv.org/abs/2206.07136; Yang et al., Normalized/Clipped
    SGD with Perturbation for Differentially Private Non-Convex Optimization, 2022,
    https://arxiv.org/abs/2206.13033
    """
    return Mechanism(rules.auto_s(gamma), threshold, noise_multiplier, groups, name="auto_s")


def psac(
    noise_multiplier: FloatOrSchedule | None = None,
    r: float = 0.01,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """DP-PSAC: normalise long gradients, and do not blow up vanishing ones.

    ``(sum_i C / (n_i + r / (n_i + r)) g_i + N(0, (sigma C)^2 I)) / B`` with n_i = |g_i|,
    C = `threshold`, sigma = `noise_multiplier` and B the expected batch size. The weight tends to C
    as n_i -> 0, where that of `auto_s` tends to C / gamma.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        r: sets where the weight is largest, > 0; at ``sqrt(r) - r`` for r < 1.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: the rule `dpjax.rules.psac` at a threshold of C.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch. Not protected: r and
        other hyper-parameters, if they were tuned on the same data; see `dpjax.accounting.tuning`.

    Example:
        >>> psac(noise_multiplier=1.0)
        Mechanism(rule=psac(r=0.01), threshold=1.0, noise_multiplier=1.0, name='psac')

    Reference: Xia et al., Differentially Private Learning with Per-Sample Adaptive Clipping, 2023,
    https://arxiv.org/abs/2212.00328
    """
    return Mechanism(rules.psac(r), threshold, noise_multiplier, groups, name="psac")


def psasc(
    noise_multiplier: FloatOrSchedule | None = None,
    r: float = 0.01,
    s: float = 0.9,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """DP-PSASC: DP-PSAC with a scaling coefficient s, which raises the bound to C / s.

    ``(sum_i C / (s n_i + r / (n_i + r)) g_i + N(0, (sigma C / s)^2 I)) / B`` with n_i = |g_i|,
    C = `threshold`, sigma = `noise_multiplier` and B the expected batch size. `dpjax.rules.psasc`
    says what s does, which is not quite what the paper says.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        r: sets, with `s`, where the weight is largest, > 0.
        s: the scaling coefficient, in (0, 1]; 1 is DP-PSAC.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: the rule `dpjax.rules.psasc` at a threshold of C.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C / s per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch. Not protected: r, s and
        C, if they were tuned on the same data; see `dpjax.accounting.tuning`.

    Example:
        >>> psasc(noise_multiplier=1.0, s=0.5).bound(1.0).item()
        2.0

    Reference: Huang et al., Enhancing DP-SGD through Non-monotonous Adaptive Scaling Gradient
    Weight, 2024, equation 6, https://arxiv.org/abs/2411.03059
    """
    return Mechanism(rules.psasc(r, s), threshold, noise_multiplier, groups, name="psasc")


def global_(
    noise_multiplier: FloatOrSchedule | None = None,
    *,
    z: float,
    threshold: FloatOrSchedule = 1.0,
    groups: Groups = None,
) -> Mechanism:
    """DP-SGD-Global: scale gradients shorter than z by one factor, drop the others.

    ``(sum_i (C / z) [|g_i| < z] g_i + N(0, (sigma C)^2 I)) / B`` with C = `threshold`,
    sigma = `noise_multiplier` and B the expected batch size.

    Args:
        noise_multiplier: sigma, a number or a schedule; None until `dpjax.calibrate` finds it.
        z: the norm from which a gradient is dropped, > 0.
        threshold: C, a number or a schedule.
        groups: which parameters share a norm: None for one norm over all, "per_leaf", or a pytree
            of labels; see `dpjax.Mechanism`.

    Returns:
        The mechanism: the rule `dpjax.rules.global_clip` at a threshold of C.

    Raises:
        ValueError: if a number is outside its range.

    Privacy:
        Bound: C per example. Relation: add or remove one example. Event: one Gaussian of noise
        multiplier sigma per step, under the sampling that drew the batch. Not protected: the choice
        of z, if it was tuned on the same data; see `dpjax.accounting.tuning`, or `global_adapt`.

    Example:
        >>> global_(noise_multiplier=1.0, z=4.0)
        Mechanism(rule=global_clip(z=4.0), threshold=1.0, noise_multiplier=1.0, name='global_')

    Reference: Bu et al., On the Convergence and Calibration of Deep Learning with Differential
    Privacy, 2021, https://arxiv.org/abs/2106.07830
    """
    return Mechanism(rules.global_clip(z), threshold, noise_multiplier, groups, name="global_")
