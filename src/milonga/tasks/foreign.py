"""Problems from outside a task: a question somebody asks, with its answer where that is known.

A run's task cannot grade them by its own means (chain arithmetic wants its operations, say). Their answers are compared as
text, as decimals and, where the grader for mathematics is installed, as mathematics.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from milonga.tasks.answers import normalise_answer
from milonga.tasks.base import Task
from milonga.tasks.grading import NEEDS, compare_quickly, get_shared_grader
from milonga.types import Grade, Problem, Split

MARK = "foreign"
"""The key of `Problem.data` that tells a problem from outside."""


def make_foreign_problem(id: str, question: str, answer: str | None = None) -> Problem:
    """Make a problem from outside. Without an answer its solutions cannot be graded."""
    return Problem(id, question, "" if answer is None else answer, {MARK: True})


class WithForeign(Task):
    """A task that also grades problems from outside; its own problems it delegates to the wrapped task."""

    name = "foreign"

    def __init__(self, own: Task) -> None:
        self.own = own
        self.options = own.options
        self.max_tokens = own.max_tokens

    def problem(self, split: Split, index: int) -> Problem:
        return self.own.problem(split, index)

    def size(self, split: Split) -> int | None:
        return self.own.size(split)

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return self.grade_all([(problem, answer, steps)])[0]

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        own = iter(self.own.grade_all([item for item in items if MARK not in item[0].data]))
        return [Grade(is_same_answer(p.answer, answer)) if MARK in p.data else next(own) for p, answer, _ in items]


def is_same_answer(gold: str, answer: str | None) -> bool | None:
    """Whether an answer equals the known one; None if none is known, or the grader that could tell is not installed."""
    if not gold:
        return None
    if answer is None:
        return False
    if importlib.util.find_spec(NEEDS["math"][0]) is None:
        return compare_quickly(normalise_answer(gold), normalise_answer(answer))
    return get_shared_grader().compare_answers([(gold, answer)])[0]
