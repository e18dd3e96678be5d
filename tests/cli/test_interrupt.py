"""An interrupt that falls into a garbage collection is raised again."""

import gc
import signal
import sys
import time

import pytest

from dpjax.cli.command import interrupts_kept


@pytest.fixture
def interrupted_collection():
    """The next collection is interrupted, as by Ctrl-C."""

    def callback(phase, info):
        gc.callbacks.remove(callback)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.callbacks.append(callback)
    yield
    signal.signal(signal.SIGINT, before)
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)


def collect_and_work(seconds):
    gc.collect()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


def test_it_is_raised_again(interrupted_collection):
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        collect_and_work(5)


def test_without_it_would_be_lost(interrupted_collection, monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_type))
    collect_and_work(0.2)
    assert lost == [KeyboardInterrupt]


def test_other_exceptions_go_where_they_went(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(found.exc_type))

    class Broken:
        def __del__(self):
            raise OSError

    with interrupts_kept():
        Broken()
        gc.collect()
    assert seen == [OSError]
