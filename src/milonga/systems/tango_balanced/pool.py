"""The pool of labelled pairs that the verifier learns from: two solutions, or beginnings of them, of the same problem.

A right and a wrong solution of the same problem differ in what a verifier must see, and not in how hard the problem is. A
beginning of a right solution, once as it is and once with its last step corrupted, differs in one step that is known, and in
the result of it. Both come from solutions that were graded anyway.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from milonga.context import Context
from milonga.patterns.slicing import build_step_prefix, corrupt_piece
from milonga.patterns.value_head import Labelled
from milonga.roles import StepSolver
from milonga.roles.slices import split_into_slices
from milonga.types import Grade, Rollout, Rollouts

Pair = tuple[Labelled, Labelled]


@dataclass
class PairPool:
    """The newest pairs, at most `limit`, as plain data: part of the run's state."""

    limit: int
    pairs: list[list[dict[str, Any]]] = field(default_factory=list)
    fresh: int = 0
    """How many of the last pairs are new since the verifier's last turn."""

    def add(self, pairs: Sequence[Pair]) -> None:
        """Add pairs; the oldest leave."""
        everything = [*self.pairs, *([one.to_json(), other.to_json()] for one, other in pairs)]
        self.pairs = everything[max(0, len(everything) - self.limit) :]
        self.fresh = min(len(self.pairs), self.fresh + len(pairs))

    def draw(self, count: int, replay: float, rng: random.Random) -> list[list[dict[str, Any]]]:
        """Draw different pairs: a share `replay` of older ones, the rest of new ones. Where one kind is short, the other fills
        up."""
        old, wanted = len(self.pairs) - self.fresh, min(count, len(self.pairs))
        few = min(old, max(round(replay * wanted), wanted - self.fresh))
        chosen = [*rng.sample(range(old), few), *rng.sample(range(old, len(self.pairs)), wanted - few)]
        return [self.pairs[place] for place in sorted(chosen)]


def find_pairs(ctx: Context, solutions: Rollouts) -> list[Pair]:
    """Find a right and a wrong solution of each problem that has both, by chance; those with steps first."""
    rng, found = ctx.rng("pairs"), []
    for group in _group_by_problem(solutions):
        sides = [[t for t in group if t.correct == value] for value in (1.0, 0.0)]
        if all(sides):
            right, wrong = (rng.choice([t for t in side if t.solution.steps] or side) for side in sides)
            found.append((Labelled(right, end=1.0), Labelled(wrong, end=0.0)))
    return found


def find_contrasts(ctx: Context, solutions: Rollouts, most: int) -> list[Pair]:
    """Make beginnings of right solutions, each up to a step by chance: as it is, and with that step corrupted. At most one of
    each problem; none where the task knows no mistakes."""
    rng, found, dialect = ctx.rng("contrasts"), list[Pair](), ctx.role("generator").dialect
    for group in _group_by_problem(solutions) if ctx.task.families else ():
        right = [t for t in group if t.correct == 1.0 and t.solution.steps]
        if not right or len(found) == most:
            continue
        piece = rng.choice(split_into_slices(rng.choice(right), 1, dialect))
        wrong = corrupt_piece(ctx.task, piece, ctx.task.families, rng)
        if wrong is None:
            continue
        both = [close_beginning(ctx, build_step_prefix(ctx, piece, step)) for step in (None, wrong)]
        counts = {len(one.solution.steps) for one in both}
        # The solution's own step may be wrong, and the same as the corruption: one text cannot be labelled both ways.
        if len(counts) == 1 and counts != {0} and both[0].text != both[1].text:
            before = [1.0] * (counts.pop() - 1)
            found.append((Labelled(both[0], [*before, 1.0]), Labelled(both[1], [*before, 0.0])))
    return found


def close_beginning(ctx: Context, beginning: Rollout) -> Rollout:
    """Close a beginning with its own last result as the answer, where the dialect frames one: a verifier that has seen no
    solution without an answer line could not read the check of such a thing, let alone learn from it."""
    solver = ctx.role("generator")
    assert isinstance(solver, StepSolver)
    steps = beginning.solution.steps
    if solver.dialect == "plain" or not steps:
        return beginning
    text = solver.write(steps, steps[-1].rpartition("=")[2].strip())
    return Rollout.from_text(beginning.id, beginning.agent, beginning.problem, text, solver.parse(text))


def _group_by_problem(solutions: Rollouts) -> list[list[Rollout]]:
    groups: dict[str, list[Rollout]] = {}
    for solution in solutions:
        groups.setdefault(solution.problem.id, []).append(solution)
    return list(groups.values())


def restore_solutions(ctx: Context, kept: Sequence[dict[str, Any]]) -> Rollouts:
    """Restore solutions from plain data, with the grade of their answer, or, for beginnings, the labels of their steps."""
    solver = ctx.role("generator")
    assert isinstance(solver, StepSolver)
    found = []
    for number, data in enumerate(kept):
        one = Labelled.from_json(data, solver, number)
        grade = Grade(None, tuple(x == 1.0 for x in one.steps)) if math.isnan(one.end) else Grade(one.end == 1.0)
        found.append(replace(one.solution, grade=grade))
    return Rollouts(found)
