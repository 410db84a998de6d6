"""Pairs to learn preferences from: those of people, played by a weak solver's slips, and the rows of both sides."""

from __future__ import annotations

from typing import Literal

from milonga.randomness import key64
from milonga.roles import StepSolver
from milonga.roles.solver import as_trace
from milonga.table import Table
from milonga.tasks.base import keyed
from milonga.types import Problem, Trace, Traces

Pair = tuple[str, Trace, Trace]
"""Of which kind, who should win, who should lose."""
Weak = Literal["first", "any"]
"""Where a weak solver slips: in the first step alone, or anywhere."""


def half_of(text: str) -> str:
    """Who learns from a problem: the policy or the reward model, never both."""
    return ("generator", "verifier")[key64("half", text) % 2]


def written(table: Table, problem: Problem, errors: set[int], name: str) -> Trace:
    """A solution of the task's own, in the solver's format, wrong in these steps."""
    solver = table.setting.roles["generator"]
    assert isinstance(solver, StepSolver)
    rng = keyed("written", table.setting.seed, table.turn, problem.id, name)
    return as_trace(table.setting.task.demonstrate(problem, rng, errors), problem, solver, f"{problem.id}/{name}")


def human_pair(table: Table, problem: Problem, weak: Weak, flip: float = 0.0) -> tuple[Trace, Trace] | None:
    """Preferred and rejected solution of a weak solver, with probability `flip` the wrong way round.

    None where the slip did the answer no harm: people look at the answer alone.
    """
    rng = keyed("human", table.setting.seed, table.turn, problem.id)
    at = 0 if weak == "first" else rng.randrange(table.setting.task.step_count(problem))
    good, bad = written(table, problem, set(), "good"), written(table, problem, {at}, "bad")
    if bad.correct == 1.0:
        return None
    return (bad, good) if rng.random() < flip else (good, bad)


def in_pairs(rows: Traces, pairs: list[Pair]) -> tuple[Traces, list[Pair]]:
    """Winner and loser of each pair as the reward model reads them; a pair of which one does not fit is left out whole."""
    found = {t.subject.id: t for t in rows}
    kept = [pair for pair in pairs if pair[1].id in found and pair[2].id in found]
    return Traces(found[side.id] for _, *sides in kept for side in sides), kept
