"""Learning a seat's format from a noisy teacher, before anything is rewarded: the SFT stage that many papers begin with."""

from __future__ import annotations

from collections.abc import Sequence

from milonga.objectives import OBJECTIVES
from milonga.recipes.base import Recipe
from milonga.table import Table
from milonga.tasks.base import keyed
from milonga.types import Lesson, Problem, Trace, Traces


def demonstrations(table: Table, seat: str, count: int | None = None) -> Traces:
    """What the seat's teacher writes about the turn's problems, one text for each, in the seat's own tokens."""
    return taught(table, seat, table.problems(count))


def taught(table: Table, seat: str, problems: Sequence[Problem]) -> Traces:
    """The same about given problems."""
    role = table.setting.roles[seat]
    shown: list[tuple[Problem | Trace, str]] = []
    for problem in problems:
        rng = keyed("demonstration", table.setting.seed, table.turn, seat, problem.id)
        about, text = role.demonstrate(table.setting.task, problem, rng)
        shown.append((problem if about is None else about, text))
    return table.write(seat, [subject for subject, _ in shown], [text for _, text in shown])


def imitation(recipe: Recipe, seat: str, texts: Traces) -> Lesson:
    """A lesson in writing these texts."""
    return Lesson(recipe.policies[seat], OBJECTIVES.get("cross_entropy"), texts, sources={"demonstrations": 1.0})
