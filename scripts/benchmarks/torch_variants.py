"""The variants in PyTorch: the plain step, and Opacus's modes on a fixed batch."""

import copy
from collections.abc import Callable

import torch
from opacus.grad_sample.utils import prepare_module
from opacus.optimizers import get_optimizer_class
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from benchmarks import torch_models
from benchmarks.workloads import CLIP, LEARNING_RATE, SIGMA, Workload

__all__ = ["TorchWorkload"]

Step = Callable[[], None]


class TorchWorkload:
    """A workload's batch, and its network with frozen parameters that all variants share."""

    def __init__(self, workload: Workload) -> None:
        """Builds the network and draws the batch."""
        torch.manual_seed(0)
        self._workload = workload
        self._plain = torch_models.build(workload, private=False)
        self._private = torch_models.build(workload, private=True)
        self._batch = torch_models.examples(workload)

    def counts(self) -> dict[str, list[int]]:
        """Returns the numbers of trained and of frozen parameters, for both networks."""
        return {
            name: [
                sum(p.numel() for p in network.parameters() if p.requires_grad == trained)
                for trained in (True, False)
            ]
            for name, network in (("plain", self._plain), ("private", self._private))
        }

    def step(self, variant: str) -> Step:
        """Returns the step of "torch" or of "opacus_<grad_sample_mode>"."""
        x, y = self._batch
        if variant == "torch":
            network = _copy(self._plain)
            return _step(network, _sgd(network), nn.CrossEntropyLoss(), x, y)
        mode = variant.removeprefix("opacus_")
        options = {"max_grad_norm": CLIP} if mode == "ghost" else {}
        network = prepare_module(_copy(self._private), mode, loss_reduction="mean", **options)
        optimizer = get_optimizer_class("flat", distributed=False, grad_sample_mode=mode)(
            _sgd(network),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            expected_batch_size=self._workload.batch,
        )
        criterion = nn.CrossEntropyLoss()
        if mode == "ghost":
            criterion = DPLossFastGradientClipping(network, optimizer, criterion)
        return _step(network, optimizer, criterion, x, y)


def _copy(network: nn.Module) -> nn.Module:
    frozen = {id(p): p for p in network.parameters() if not p.requires_grad}
    return copy.deepcopy(network, frozen)


def _sgd(network: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in network.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=LEARNING_RATE)


def _step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
) -> Step:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(network(x), y).backward()
        optimizer.step()

    return step
