"""Makes the sampling that a request describes."""

from dpjax.cli.request import Request
from dpjax.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson

__all__ = ["build_sampling"]


def build_sampling(request: Request) -> Sampling:
    """Returns the sampling that a request describes."""
    if isinstance(request.sampling, dict):
        try:
            return Sampling.from_plain(request.sampling)
        except (TypeError, ValueError) as error:
            raise ValueError(f"sampling: {error}") from error
    if request.sampling == "full":
        return FullBatch(request.dataset_size)
    size, batch = request.required("dataset_size"), request.required("batch_size")
    if request.sampling == "truncated":
        return TruncatedPoisson(batch, size, request.required("max_size"))
    if request.sampling == "fixed":
        return FixedSize(batch, size)
    return Poisson(batch, size)
