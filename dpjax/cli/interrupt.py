"""Ctrl-C that is not lost: Python drops an interrupt that falls into a garbage collection."""

import _thread
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupts_kept"]

_SECONDS = 0.05  # until it is raised again: by then the callback it fell into is over


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raises a KeyboardInterrupt again if it was raised where Python ignores exceptions.

    That is inside a callback of the garbage collector (JAX has one) or of a weak reference, or a
    ``__del__``: Python prints such an exception and goes on.
    """
    before = sys.unraisablehook

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(_SECONDS, _thread.interrupt_main).start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
