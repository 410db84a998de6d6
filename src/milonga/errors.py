"""Errors that a user can mend.

Invariant: a mistake of the user (a wrong key, a missing file, a full disk) is raised as a `UserError` whose text says what
was wrong, where, and what to do. The command line prints it as one line and exits with 2; only bugs show a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend. The message is complete: what, where, what to do."""


class ConfigError(UserError):
    """A key or a value of the configuration is wrong."""


class DataError(UserError):
    """A data file is missing, empty or malformed; the message names file, line and field."""


class TooLongError(UserError):
    """Nothing of what was asked fits into a model's context."""


class RunFolderError(UserError):
    """A run folder is in use, incomplete, or cannot be written."""


class Notice(UserWarning):
    """Something that went wrong and was mended: the run goes on, and its user should know each time."""


def install(extra: str) -> str:
    """How an optional part is installed. By way of the checkout: it is where everyone has Milonga from."""
    return f"pip install '.[{extra}]' in Milonga's folder"


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str, also: str = "") -> None:
        super().__init__(f"{what} needs an optional package: {install(extra)}{also}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str]]:
        """From one process to another it goes as its text."""
        return UserError, (str(self),)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or all of them where none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(names) if names else "none are known"
