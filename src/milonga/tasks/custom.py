"""Tasks of the user's own, named `path/to/file.py:attr` or `package.module:attr`, without touching the package.

The attribute is a `Task` subclass, or a function `f(rng: random.Random) -> (question, answer)`. A function becomes a
task whose splits are disjoint by a hash of the question, graded by exact match after `strip`, by the function's own
attribute `grade`, or by a function `grade(question, answer, given)` of its module. That returns whether the answer is
right, or its reward from 0 to 1, of which 0.5 and more count as right; None if it cannot tell.

Invariants: every mistake in the user's file, while grading too, is one line that says where it is. The user's code runs in our
process and is trusted as such: a grader that evaluates answers is the user's own risk.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from milonga.errors import ConfigError
from milonga.loading import describe_place, load_attribute, make_load_error
from milonga.randomness import keyed_rng
from milonga.tasks.base import Task, TaskOptions, assign_split
from milonga.types import Grade, Problem, Split

TRIES = 2000
"""Draws before giving up on a split: a tenth of all texts is dev, so only a handful of texts can miss it so often."""


RIGHT = 0.5
"""A reward from here on counts as a right answer."""


class FunctionOptions(TaskOptions):
    seed: int = 0
    max_tokens: int = Field(1024, ge=1)


@dataclass(frozen=True)
class Written:
    """The user's functions, and where they are defined."""

    place: str
    make: Callable[[random.Random], tuple[str, str]]
    judge: Callable[[str, str, str], bool | float | None] | None


class FunctionTask(Task):
    """A procedural task made of a function that writes one question and its answer."""

    Options = FunctionOptions
    options: FunctionOptions
    written: ClassVar[Written]

    def __init__(self, options: FunctionOptions | None = None) -> None:
        super().__init__(options)
        self.max_tokens = self.options.max_tokens

    def problem(self, split: Split, index: int) -> Problem:
        # The key holds the function's name and not its path: the problems do not depend on where the file lies.
        rng = keyed_rng("custom", self.name, self.options.seed, split, index)
        for _ in range(TRIES):
            question, answer = self._make_question(rng)
            if assign_split(question) == split:
                return Problem(f"{self.name}/{split}/{index}", question, answer)
        place = self.written.place
        raise ConfigError(f"task '{place}' made no {split} question in {TRIES} tries: it has too few different ones")

    def _make_question(self, rng: random.Random) -> tuple[str, str]:
        try:
            made: Any = self.written.make(rng)
        except Exception as error:
            raise make_load_error(f"task '{self.written.place}'", error) from None
        if not isinstance(made, tuple) or [type(part) for part in made] != [str, str]:
            raise ConfigError(f"task '{self.written.place}' must return two texts (question, answer), not {made!r:.80}")
        return made[0], made[1]

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        if answer is None:
            return Grade(False)
        if self.written.judge is None:
            return Grade(answer.strip() == problem.answer.strip())
        what = f"grade of task '{self.written.place}'"
        try:
            verdict = self.written.judge(problem.text, problem.answer, answer)
        except Exception as error:
            raise make_load_error(f"{what} on the question {problem.text!r:.80}", error) from None
        if verdict is None or isinstance(verdict, bool | np.bool_):
            return Grade(None if verdict is None else bool(verdict))
        if not isinstance(verdict, Real) or not 0 <= verdict <= 1:
            place = describe_place(self.written.judge)
            raise ConfigError(
                f"{what} ({place}) gave {verdict!r:.80} on the question {problem.text!r:.80}; "
                "return True, False, a number from 0 to 1, or None"
            )
        return Grade(bool(verdict >= RIGHT), reward=float(verdict))


def load_custom_task(name: str) -> type[Task]:
    """Load the task class of `place:attr`."""
    found, module = load_attribute("task", name)
    attr = name.rpartition(":")[2]
    if inspect.isclass(found) and issubclass(found, Task):
        return _check_class(found, name, attr)
    if inspect.isclass(found) or not callable(found):
        kind = "another class" if inspect.isclass(found) else f"a value of type {type(found).__name__}"
        raise ConfigError(f"task '{name}' is neither a Task subclass nor a function f(rng), but {kind}")
    judge = getattr(found, "grade", None) or getattr(module, "grade", None)
    return type(attr, (FunctionTask,), {"name": attr, "written": Written(name, found, judge)})


def check_instance(task: Task, options: Mapping[str, Any]) -> Task:
    """Check a task that a program passed ready made: it has its options, and a name, which may be that of its class."""
    if options:
        raise ConfigError(f"task.{next(iter(options))}: a task that is passed as an instance has its options already")
    if not hasattr(task, "name"):
        type(task).name = type(task).__name__
    return task


def _check_class(found: type[Task], name: str, attr: str) -> type[Task]:
    if inspect.isabstract(found):
        missing = " and ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"task '{name}': class '{attr}' does not define {missing}")
    if not hasattr(found, "name"):
        found.name = attr
    return found
