"""Data sets read from their verified official files, and the digits, which need no files."""

from dpjax.data.base import Dataset, Pixels, RandomAccess, Split
from dpjax.data.fetching import fetch
from dpjax.data.fingerprint import HASHED_ROWS, fingerprints
from dpjax.data.loading import load
from dpjax.data.own import Rows, from_function, read_file
from dpjax.data.registry import DATASETS, data_directory, source_of
from dpjax.data.source import Archive, File, Folder, Source
from dpjax.data.verify import Status, status

__all__ = [
    "DATASETS",
    "HASHED_ROWS",
    "Archive",
    "Dataset",
    "File",
    "Folder",
    "Pixels",
    "RandomAccess",
    "Rows",
    "Source",
    "Split",
    "Status",
    "data_directory",
    "fetch",
    "fingerprints",
    "from_function",
    "load",
    "read_file",
    "source_of",
    "status",
]
