"""Signals that ask a process to stop: Ctrl-C, SIGTERM, and SIGHUP of a terminal that was closed. All are answered alike.

In work that can stop at a safe point (`delay_interrupts`), the first is answered there and the second at once; elsewhere, all
are answered at once. Invariant: a signal that is ignored (nohup), or handled by the program around us, is left alone.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A request to stop by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def get_exit_code(error: KeyboardInterrupt) -> int:
    """Return the exit code that tells a shell which signal ended a command."""
    return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)


def stop_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Answer a signal at once, as Python answers Ctrl-C."""
    raise Interrupted(number)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Answer all signals in this block at once, by raising `Interrupted`. What was to be cleaned up is cleaned up."""
    with _handle(_list_ours(), stop_at_once):
        yield


@contextmanager
def delay_interrupts(say: Callable[[str], None], what: str = "stopping after this turn, with a checkpoint") -> Iterator[Stop]:
    """Delay the first signal in this block: what it yields tells whether there was one. A second one is answered at once."""
    stop, ours = Stop(), _list_ours()

    def note(number: int, frame: FrameType | None) -> None:
        stop.number = number
        for each in ours:
            signal.signal(each, stop_at_once)
        say(f"{what}; {'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name} again stops at once")

    with _handle(ours, note):
        yield stop


class Stop:
    """Whether a signal has asked to stop."""

    number: int | None = None

    @property
    def is_asked(self) -> bool:
        return self.number is not None

    def raise_if_asked(self) -> None:
        """Stop here, if it was asked for: at a safe point."""
        if self.number is not None:
            raise Interrupted(self.number)


@contextmanager
def keep_handlers() -> Iterator[None]:
    """Put back the handlers of all signals after this block: some libraries set their own without asking."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for each, handler in before.items():
                signal.signal(each, handler if handler is not None else signal.SIG_DFL)


def _list_ours() -> list[signal.Signals]:
    """List the signals that nobody else answers. Only the main thread can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        return []
    free = (signal.SIG_DFL, signal.default_int_handler, stop_at_once)
    return [each for each in SIGNALS if signal.getsignal(each) in free]


@contextmanager
def _handle(signals: list[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {each: signal.signal(each, handler) for each in signals}
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, old)
