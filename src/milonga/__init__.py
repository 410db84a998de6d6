"""Milonga trains language models that learn from each other: a generator and its verifier, and every other way of co-training."""

from milonga.api import Report, evaluate, resume, run
from milonga.errors import ConfigError, DataError, MissingExtra, RunFolderError, UserError
from milonga.tasks import Task, TaskOptions
from milonga.types import Grade, Problem

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "Grade",
    "MissingExtra",
    "Problem",
    "Report",
    "RunFolderError",
    "Task",
    "TaskOptions",
    "UserError",
    "evaluate",
    "resume",
    "run",
]
