"""Tasks: problems and their graders. `make_task` turns the `[task]` section of a config into a task.

Importing this imports no third-party grader and no loader of data sets: those come in when a task that needs them is
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from milonga.config import explain
from milonga.errors import ConfigError
from milonga.loading import get_live
from milonga.randomness import keyed_rng
from milonga.tasks.base import (
    TASKS,
    Capability,
    Demonstration,
    PassRate,
    Task,
    TaskOptions,
    Tool,
    assign_split,
    normalise_text,
)
from milonga.tasks.bugs import Bugs
from milonga.tasks.chain import Chain
from milonga.tasks.code import Code
from milonga.tasks.custom import check_instance, load_custom_task
from milonga.tasks.data import Gsm8k, Hub, Jsonl
from milonga.tasks.haystack import Haystack
from milonga.tasks.last_letter import LastLetter
from milonga.tasks.search import Search

GYM = "reasoning_gym"
Options = TypeVar("Options", bound=TaskOptions)

__all__ = [
    "TASKS",
    "Bugs",
    "Capability",
    "Chain",
    "Code",
    "Demonstration",
    "Gsm8k",
    "Haystack",
    "Hub",
    "Jsonl",
    "LastLetter",
    "PassRate",
    "Search",
    "Task",
    "TaskOptions",
    "Tool",
    "assign_split",
    "find_task",
    "keyed_rng",
    "make_task",
    "normalise_text",
]


def make_task(section: Mapping[str, Any]) -> Task:
    """Make a task from `{"name": ..., **options}`, or raise one clear error."""
    options = dict(section)
    name = options.pop("name", None)
    if not isinstance(name, str) or not name:
        raise ConfigError("the task needs a name")
    chosen = {key: options.pop(key) for key in PassRate.model_fields if key in options}
    if isinstance(passed := get_live(name), Task):
        task = check_instance(passed, options)
    else:
        found = find_task(name)
        task = found(_parse_options(found.Options, options))
    task.pass_rate, task.kept = _parse_options(PassRate, chosen) if chosen else None, None
    return task


def _parse_options(kind: type[Options], given: Mapping[str, Any]) -> Options:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise explain(error, kind, prefix="task") from None


def find_task(name: str) -> type[Task]:
    """Find the task class of a name: registered, `reasoning_gym:NAME`, or the user's own `file.py:attr` or `module:attr`."""
    place, colon, rest = name.rpartition(":")
    if name in TASKS:
        return TASKS.get(name)
    if GYM in (place, name):
        from milonga.tasks.gym import make_gym_task

        return make_gym_task(rest if colon else "")
    if colon:
        return load_custom_task(name)
    return TASKS.get(name)
