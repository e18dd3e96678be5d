"""A store of compiled programs that is kept between runs, and shared by checkouts.

Most of the tests' time is spent compiling. JAX's own compilation cache is used, with two changes:
entries are written to a temporary file and renamed, so that workers and test runs can share it, and
entries that no test has used for two weeks are deleted.
"""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

import jax
from jax._src.lru_cache import LRUCache

SHARED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpjax" / "tests"
WEEKS = 2


def install() -> None:
    """Makes this process use the store, and the processes that it starts a store of their own."""
    # Programs are compiled for this machine's instructions, which are not part of their names.
    folder = SHARED / hashlib.sha256(_instructions()).hexdigest()[:16]
    LRUCache.get, LRUCache.put = _get, _put
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    # Those processes write without renaming, as JAX does, so no two of them may share a folder.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / f"started-by-{worker}")


def clean() -> None:
    """Deletes entries that have not been used for two weeks."""
    oldest = time.time() - WEEKS * 7 * 24 * 3600
    for file in SHARED.glob("**/*-cache"):
        with suppress(FileNotFoundError):  # another test run may delete them at the same time
            if file.stat().st_mtime < oldest:
                file.unlink()


def _instructions() -> bytes:
    described = Path("/proc/cpuinfo")
    lines = described.read_bytes().splitlines() if described.exists() else []
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")


def _get(self: LRUCache, key: str) -> bytes | None:
    try:
        value = _entry(self, key).read_bytes()
        os.utime(_entry(self, key))
    except FileNotFoundError:
        return None
    return value


def _put(self: LRUCache, key: str, value: bytes) -> None:
    aside = _entry(self, f"{key}-{os.getpid()}")
    aside.write_bytes(value)
    aside.replace(_entry(self, key))


def _entry(store: LRUCache, key: str) -> Path:
    return Path(store.path) / f"{key}-cache"
