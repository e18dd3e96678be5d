"""How many training examples the papers' data sets have: noise follows from it without files."""

from dpjax import _checks

__all__ = ["training_size"]

_SIZES = {
    "digits": 1_437,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257,
    "imagenette": 9_469,
    "celeba_male": 162_770,
    "celeba_smiling": 162_770,
    "names": 16_041,  # four fifths of each language, see `dpjax.data.names`
    "ag_news": 120_000,
    "ag_news_subset": 38_659,
    "sst2": 67_349,
    "qnli": 104_743,
    "qqp": 363_846,
    "mnli": 392_702,
}


def training_size(data: str) -> int:
    """Returns N, as the data set's publishers give it.

    >>> training_size("qnli")
    104743
    """
    if data not in _SIZES:
        raise ValueError(f"data = {data!r}: {_checks.nearest(data, _SIZES)}")
    return _SIZES[data]
