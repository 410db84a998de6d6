"""Imitation of a noisy teacher, to learn an agent's format before RL: the SFT stage that many papers begin with."""

from __future__ import annotations

from collections.abc import Sequence

from milonga.objectives import OBJECTIVES
from milonga.recipes.base import Recipe
from milonga.table import Table
from milonga.tasks.base import make_keyed_rng
from milonga.types import Lesson, Problem, Trace, Traces


def sample_demonstrations(table: Table, seat: str, count: int | None = None) -> Traces:
    """Return the teacher's demonstrations for the turn's problems, one for each, in the agent's tokens."""
    return demonstrate_problems(table, seat, table.problems(count))


def demonstrate_problems(table: Table, seat: str, problems: Sequence[Problem]) -> Traces:
    """Return the teacher's demonstrations for these problems, one for each, in the agent's tokens."""
    role = table.setting.roles[seat]
    shown: list[tuple[Problem | Trace, str]] = []
    for problem in problems:
        rng = make_keyed_rng("demonstration", table.setting.seed, table.turn, seat, problem.id)
        about, text = role.demonstrate(table.setting.task, problem, rng)
        shown.append((problem if about is None else about, text))
    return table.write(seat, [subject for subject, _ in shown], [text for _, text in shown])


def make_imitation_batch(recipe: Recipe, seat: str, texts: Traces) -> Lesson:
    """Make a cross-entropy train batch from these demonstrations."""
    return Lesson(recipe.policies[seat], OBJECTIVES.get("cross_entropy"), texts, sources={"demonstrations": 1.0})
