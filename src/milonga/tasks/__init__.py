"""Tasks: what is to be solved. `make_task` turns the `[task]` section of a config into a task."""

from collections.abc import Mapping
from typing import Any

from milonga.tasks.base import TASKS, Demonstration, Task, TaskOptions, keyed, normalised, split_of
from milonga.tasks.chain import Chain
from milonga.tasks.last_letter import LastLetter



def make_task(section: Mapping[str, Any]) -> Task:
    """A task from `{"name": ..., **options}`."""
    options = dict(section)
    kind = TASKS.get(str(options.pop("name")))
    return kind(kind.Options.model_validate(options))


__all__ = [
    "make_task","TASKS", "Chain", "Demonstration", "LastLetter", "Task", "TaskOptions", "keyed", "normalised", "split_of"]
