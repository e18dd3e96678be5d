"""The data sets by name, and the location of their folders."""

import os
from pathlib import Path

from dpjax import _checks
from dpjax.data.ag_news import AG_NEWS, AG_NEWS_SUBSET
from dpjax.data.celeba import CELEBA, CELEBA_FULL
from dpjax.data.cifar import CIFAR10, CIFAR100
from dpjax.data.digits import DIGITS
from dpjax.data.features import CIFAR10_SIMCLR
from dpjax.data.glue import MNLI, MNLI_MISMATCHED, QNLI, QQP, SST2
from dpjax.data.imagenette import IMAGENETTE
from dpjax.data.mnist import FASHION_MNIST, MNIST
from dpjax.data.names import NAMES
from dpjax.data.scattered import CIFAR10_SCATTERING, FASHION_MNIST_SCATTERING, MNIST_SCATTERING
from dpjax.data.source import Source
from dpjax.data.svhn import SVHN

__all__ = ["DATASETS", "data_directory", "source_of"]

DATASETS: dict[str, Source] = {
    source.name: source
    for source in (
        *(DIGITS, MNIST, FASHION_MNIST, CIFAR10, CIFAR100, SVHN, IMAGENETTE),
        *(*CELEBA, *CELEBA_FULL, NAMES, AG_NEWS, AG_NEWS_SUBSET),
        *(SST2, QNLI, MNLI, MNLI_MISMATCHED, QQP),
        *(MNIST_SCATTERING, FASHION_MNIST_SCATTERING, CIFAR10_SCATTERING, CIFAR10_SIMCLR),
    )
}
"""Every data set that can be loaded. A new one is one `Source`."""


def source_of(name: str) -> Source:
    """Returns where a data set comes from: its files, checksums and addresses.

    Args:
        name: a name in `DATASETS`.

    Raises:
        ValueError: if the name is unknown; suggests the nearest one.

    Example:
        >>> source_of("mnist").examples
        (60000, 10000)
        >>> source_of("mnits")
        Traceback (most recent call last):
        ...
        ValueError: data set = 'mnits': did you mean 'mnist'? (known: ag_news, ...)
    """
    return DATASETS[_checks.choice("data set", name, DATASETS)]


def data_directory(directory: str | os.PathLike[str] | None = None) -> Path:
    """Returns the folder that holds one folder per data set.

    Args:
        directory: the folder; None means the environment variable DPJAX_DATA or, if it is not set,
            ``~/.cache/dpjax``.

    Example:
        >>> data_directory("datasets") / "mnist"
        PosixPath('datasets/mnist')
    """
    if directory is None:
        directory = os.environ.get("DPJAX_DATA") or "~/.cache/dpjax"
    return Path(directory).expanduser()
