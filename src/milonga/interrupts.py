"""Ctrl-C at a safe point: the first one is answered when the work in progress is done, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def delay_interrupts(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Delay the first Ctrl-C in this block: the function that it yields tells whether there was one. A second one raises
    KeyboardInterrupt, as ever.

    Where Ctrl-C is ignored or not ours to handle (in a thread, under a program with a handler of its own), nothing changes.
    """
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        say("stopping after this turn, with a checkpoint; Ctrl-C again stops at once")

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
