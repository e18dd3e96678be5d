"""Samplings: records that draw batches and tell the accountant how they were drawn."""

from dpjax.sampling.base import Sampling
from dpjax.sampling.batches import Drawn, Packed
from dpjax.sampling.records import FixedSize, FullBatch, Poisson, TruncatedPoisson

__all__ = ["Drawn", "FixedSize", "FullBatch", "Packed", "Poisson", "Sampling", "TruncatedPoisson"]
