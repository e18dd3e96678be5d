"""Data sets in their official file formats, verified; and the digits, which need no files."""

from dpjax.data.base import Dataset, Pixels, Split
from dpjax.data.fetching import fetch
from dpjax.data.loading import load
from dpjax.data.registry import DATASETS, data_directory, source_of
from dpjax.data.source import Archive, File, Folder, Source
from dpjax.data.verify import Status, status

__all__ = [
    "DATASETS",
    "Archive",
    "Dataset",
    "File",
    "Folder",
    "Pixels",
    "Source",
    "Split",
    "Status",
    "data_directory",
    "fetch",
    "load",
    "source_of",
    "status",
]
