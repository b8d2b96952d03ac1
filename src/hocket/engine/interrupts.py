"""Ctrl-C at a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Ctrl-C inside the block takes effect at its end; a second one takes effect at once.

    Does nothing in a thread other than the main one, which gets no signals, and where Ctrl-C is ignored or is handled
    by something that is not Python's.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append((number, frame))
        if len(waiting) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if len(waiting) == 1:
            handler(*waiting[0])
