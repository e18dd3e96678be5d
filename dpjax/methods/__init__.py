"""The published methods, one call each, all of one type: change the method by changing one line."""

from dpjax.methods.adaptive import (
    andrew,
    auto_dp_sgd_sound,
    dc_sgd_e,
    dc_sgd_p,
    global_adapt,
    van_der_veen,
)
from dpjax.methods.clipping import auto_s, auto_v, dp_sgd, global_, psac, psasc
from dpjax.methods.decays import du, lin_decay, lin_transfer, yu, zhang_adaptive
from dpjax.methods.stateful import adaclip, psasc_momentum, psasc_momentum_full_batch

__all__ = [
    "adaclip",
    "andrew",
    "auto_dp_sgd_sound",
    "auto_s",
    "auto_v",
    "dc_sgd_e",
    "dc_sgd_p",
    "dp_sgd",
    "du",
    "global_",
    "global_adapt",
    "lin_decay",
    "lin_transfer",
    "psac",
    "psasc",
    "psasc_momentum",
    "psasc_momentum_full_batch",
    "van_der_veen",
    "yu",
    "zhang_adaptive",
]
