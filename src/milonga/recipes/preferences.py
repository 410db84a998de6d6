"""Pairs to learn preferences from: those of people, played by a weak solver's slips, those of a round, and their lessons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from milonga.preferences import Preference
from milonga.randomness import key64
from milonga.recipes.base import Recipe
from milonga.roles import StepSolver
from milonga.roles.solver import as_trace
from milonga.table import Table
from milonga.tasks.base import keyed
from milonga.types import Lesson, Problem, Trace, Traces

Pair = tuple[str, Trace, Trace]
"""Of which kind, who should win, who should lose."""
BEFORE = "before"
"""The tag under which recipes that play in rounds keep what a policy was at the start of the round."""
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


def as_given(trace: Trace) -> Trace:
    """What another version of a policy sampled, as a row to learn from: its very ids, and never for a policy gradient."""
    segments = tuple(replace(segment, trained=segment.policy is not None) for segment in trace.segments)
    return replace(trace, segments=segments, origin="given", temperature=1.0)


def kept_pairs(table: Table, pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that are new in this round; the run folder has them from here on, with their kinds as the reason."""
    return [(reason, winner, loser) for reason, winner, loser in pairs if table.prefer(winner, loser, reason)]


def recalled(table: Table, seat: str, kept: Sequence[Preference], count: int) -> list[Pair]:
    """So many of the pairs that were kept, or all there are, drawn by the turn."""
    chosen = keyed("recall", table.setting.seed, table.turn, seat).sample(range(len(kept)), min(len(kept), count))
    policy = table.setting.policies[seat]
    return [(kept[i].reason, *kept[i].traces(policy)) for i in sorted(chosen)]


def pair_lesson(recipe: Recipe, seat: str, pairs: Sequence[Pair], **more: Any) -> Lesson:
    """Winners and losers as neighbouring rows, each pair a unit."""
    rows = Traces(side for _, *sides in pairs for side in sides)
    units = [row // 2 for row in range(len(rows))]
    return recipe.lesson(seat, rows, labels=[1.0, 0.0] * len(pairs), units=units, **more)
