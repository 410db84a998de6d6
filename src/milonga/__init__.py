"""Milonga trains language models that learn from each other: a generator and its verifier, and other pairs.

Names are loaded when they are first used: the command line completes a word in the time that numpy alone takes to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milonga.api import Report, evaluate, resume, run
    from milonga.comparing import compare
    from milonga.errors import ConfigError, DataError, MissingExtra, RunFolderError, UserError
    from milonga.pair import Pair
    from milonga.tasks import Task, TaskOptions
    from milonga.types import Grade, Problem

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "Grade",
    "MissingExtra",
    "Pair",
    "Problem",
    "Report",
    "RunFolderError",
    "Task",
    "TaskOptions",
    "UserError",
    "compare",
    "evaluate",
    "resume",
    "run",
]
HOMES = {
    "milonga.api": ("Report", "evaluate", "resume", "run"),
    "milonga.comparing": ("compare",),
    "milonga.errors": ("ConfigError", "DataError", "MissingExtra", "RunFolderError", "UserError"),
    "milonga.pair": ("Pair",),
    "milonga.tasks": ("Task", "TaskOptions"),
    "milonga.types": ("Grade", "Problem"),
}
"""Where the public names live."""


def __getattr__(name: str) -> Any:
    for module, names in HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'milonga' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
