"""Errors that a user can fix.

Invariant: a mistake of the user (a wrong key, a missing file, a full disk) is raised as a `UserError` whose text says what
was wrong, where, and what to do. The command line prints it as one line and exits with 2; only bugs show a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """An error that the user can fix. The message is complete: what, where, what to do."""


class ConfigError(UserError):
    """A key or a value of the configuration is wrong."""


class DataError(UserError):
    """A data file is missing, empty or malformed; the message names file, line and field."""


class OutOfMemory(UserError):
    """Memory ran out, of the device or of the host; the message names settings that need less."""


class TooLongError(UserError):
    """No prompt of a request fits into the model's context."""


class RunFolderError(UserError):
    """A run folder is in use, incomplete, or cannot be written."""


class StalledError(UserError):
    """A run stopped with a checkpoint because it found nothing to learn from."""


class Notice(UserWarning):
    """A warning about an error that was recovered from: the run continues, and the user is told each time."""


def format_install_hint(extra: str) -> str:
    """Format how to install an optional extra: from the checkout, which is how everyone installs Milonga."""
    return f"pip install '.[{extra}]' in Milonga's folder"


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str, also: str = "") -> None:
        super().__init__(f"{what} needs an optional package: {format_install_hint(extra)}{also}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str]]:
        """Pickle as a plain `UserError` with the same text, to cross process boundaries."""
        return UserError, (str(self),)


LOST_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""What torch says when memory is refused, on whatever device."""


@contextmanager
def explain_lost_memory(advice: str) -> Iterator[None]:
    """Explain in one line that memory ran out, on whatever device: numpy, torch on a CPU and torch on a GPU say it each in its
    own way. `advice` names what needs less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not known and not any(words in str(error) for words in LOST_MEMORY):
            raise
        raise OutOfMemory(f"memory ran out: {advice}") from None


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Suggest a known name for a misspelt one: the nearest, or list all of them if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(names) if names else "none are known"
