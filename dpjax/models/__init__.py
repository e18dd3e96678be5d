"""The papers' networks, for ONE example, and as pure functions of plain parameters."""

from dpjax.models.activations import activation, tempered_sigmoid
from dpjax.models.network import MODELS, Network, build

__all__ = ["MODELS", "Network", "activation", "build", "tempered_sigmoid"]
