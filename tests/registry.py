"""The one registry that drives the contract tests: a new rule, threshold or method is one row."""

from collections.abc import Callable

from dpjax import methods, rules, schedules, thresholds
from dpjax.mechanism import Release
from dpjax.papers.auto_dp_sgd import auto_dp_sgd
from dpjax.rules import Rule
from dpjax.schedules import Schedule
from dpjax.thresholds import Threshold

RULES: dict[str, Rule] = {
    "abadi": rules.abadi(),
    "auto_v": rules.auto_v(),
    "auto_s": rules.auto_s(gamma=0.01),
    "nsgd": rules.nsgd(r=0.05),
    "psac": rules.psac(r=0.1),
    "psasc": rules.psasc(r=0.1, s=0.6),
    "global_clip": rules.global_clip(z=3.0),
    "global_adapt": rules.global_adapt(scale=0.7),
}

SCHEDULES: dict[str, Schedule] = {
    "yu_linear": schedules.yu_linear(init=2.0, steps=100),
    "du_decay": schedules.du_decay(init=2.0, rho=0.3, steps=100),
    "power_decay": schedules.power_decay(init=2.0, steps_per_epoch=12.5),
    "table": schedules.table(values=(1.0, 0.7, 0.9), steps_per_epoch=7),
    "scaled": schedules.scaled(schedules.yu_linear(init=2.0, steps=100), factor=0.5),
    "geometric": schedules.geometric(init=1.5, steps_per_epoch=12.5),
    "time_decay": schedules.time_decay(init=1.5, steps_per_epoch=12.5, rate=0.3),
    "step_decay": schedules.step_decay(init=1.5, steps_per_epoch=12.5, every=2),
    "exponential_decay": schedules.exponential_decay(init=1.5, steps_per_epoch=12.5),
}

THRESHOLDS: dict[str, Threshold] = {
    "quantile": thresholds.quantile(target=0.5),
    "dc_sgd_p": thresholds.dc_sgd_p(p=0.5),
    "dc_sgd_e": thresholds.dc_sgd_e(),
    "dc_sgd_e_raw": thresholds.dc_sgd_e(negative="raw"),
    "dc_sgd_e_threshold": thresholds.dc_sgd_e(negative="threshold"),
    "private_mean": thresholds.private_mean(),
    "global_z": thresholds.global_z(),
}

# Each takes the noise multiplier (sigma_0 for a decaying one).
METHODS: dict[str, Callable[[float], Release]] = {
    "dp_sgd": methods.dp_sgd,
    "auto_v": methods.auto_v,
    "auto_s": methods.auto_s,
    "psac": methods.psac,
    "psasc": methods.psasc,
    "global_": lambda sigma: methods.global_(sigma, z=3.0),
    "yu": lambda sigma: methods.yu(sigma, steps=100),
    "du": lambda sigma: methods.du(sigma, steps=100, rho_mu=2.0),
    "lin_decay": lambda sigma: methods.lin_decay(sigma, steps_per_epoch=10),
    "lin_transfer": lambda sigma: methods.lin_transfer(
        sigma, thresholds=(1.0, 0.8), steps_per_epoch=10
    ),
    "zhang_adaptive": lambda sigma: methods.zhang_adaptive(sigma, steps_per_epoch=10),
    "andrew": methods.andrew,
    "dc_sgd_p": methods.dc_sgd_p,
    "dc_sgd_e": methods.dc_sgd_e,
    "van_der_veen": methods.van_der_veen,
    "global_adapt": methods.global_adapt,
    "psasc_momentum": lambda sigma: methods.psasc_momentum(sigma, length=2),
    "psasc_momentum_full_batch": lambda sigma: methods.psasc_momentum_full_batch(
        sigma, dataset_size=64
    ),
    "adaclip": methods.adaclip,
    "auto_dp_sgd": lambda sigma: auto_dp_sgd(sigma, steps_per_epoch=10, epochs=10),
    "auto_dp_sgd_sound": lambda sigma: methods.auto_dp_sgd_sound(
        sigma, steps_per_epoch=10, epochs=10
    ),
}
