"""Milonga trains language models that learn from each other: a generator and its verifier, and other pairs."""

from milonga import api
from milonga.api import Report, evaluate, resume
from milonga.comparing import compare
from milonga.errors import ConfigError, DataError, MissingExtra, RunFolderError, UserError
from milonga.pair import Pair
from milonga.tasks import Task, TaskOptions
from milonga.types import Grade, Problem

# The package milonga.run is loaded by now: were it not, its first import would take this name from the function.
run = api.run

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
