"""Shared parts of recipes that look at parts of solutions: cutting slices, a solution up to one step which may be rewritten,
reference solutions, and the log-probability of a verdict."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from milonga.context import Context
from milonga.credit import is_reference
from milonga.randomness import keyed_rng
from milonga.roles import SliceJudge, StepSolver
from milonga.roles.prose import ITEM
from milonga.roles.slices import Slice
from milonga.roles.solver import demonstration_to_rollout
from milonga.tasks import Task
from milonga.types import Problem, Rollout, Rollouts


def cut_slices(ctx: Context, solutions: Iterable[Rollout]) -> Rollouts:
    """Cut all solutions into slices, as the verifier's role cuts them."""
    judge = ctx.role("verifier")
    return Rollouts(piece for solution in solutions for piece in judge.split_solution(solution) or ())


def write_reference(ctx: Context, problem: Problem, mark: str = "") -> Rollout:
    """Write the reference solution of a problem in the generator's own format, so that it is not recognised by its style.
    `mark`, appended to each of its steps, is such a style."""
    solver = ctx.role("generator")
    assert isinstance(solver, StepSolver)
    demonstration = ctx.task.demonstrate(problem, keyed_rng("reference", ctx.seed, problem.id))
    marked = replace(demonstration, steps=tuple(f"{step}{mark}" for step in demonstration.steps))
    return demonstration_to_rollout(marked, problem, solver, f"reference/{problem.id}")


def build_step_prefix(ctx: Context, piece: Rollout, step: str | None = None) -> Rollout:
    """Build the prefix of a solution up to one step, which `step` replaces, in the solver's format. In prose what stands before
    the step, and the space around it, stay as they are."""
    solver, value = ctx.role("generator"), piece.parsed.get(Slice)
    assert isinstance(solver, StepSolver)
    if solver.dialect == "plain":
        text = _cut_prose(piece, step)
    else:
        whole = solver.write([*value.before, value.steps[0] if step is None else step], "")
        text = whole[: solver.parse(whole).ends[len(value.before)]]
    prefix = Rollout.from_text(f"{piece.id}>{step or ''}", "generator", piece.problem, text, solver.parse(text))
    return replace(prefix, finish="length")


def _cut_prose(piece: Rollout, step: str | None) -> str:
    """Cut a solution in prose behind one step, which `step` replaces."""
    solution, at = piece.target.solution, len(piece.parsed.get(Slice).before)
    start, end = solution.ends[at - 1] if at else solution.begin, solution.ends[at]
    before, own = piece.target.text[:start], piece.target.text[start:end]
    if step is None:
        return before + own
    if ITEM.match(own) and not ITEM.match(step):
        # Without the number of a list's item, only a blank line tells it from the item before.
        return f"{before.rstrip()}\n\n{step}{own[len(own.rstrip()) :]}".lstrip()
    return before + own.replace(own.strip(), step, 1)


def corrupt_piece(task: Task, piece: Rollout, families: Sequence[str], rng: random.Random) -> str | None:
    """Corrupt a step, given as a slice, by a random one of these families of mistakes; None if none applies to it."""
    value = piece.parsed.get(Slice)
    steps, at = [*value.before, *value.steps], len(value.before)
    found = (task.corrupt_step(piece.problem, steps, at, name, rng) for name in rng.sample(families, len(families)))
    return next((text for text in found if text is not None), None)


def score_origin_logprobs(ctx: Context, verdicts: Rollouts) -> dict[str, float]:
    """Return for each readable verdict, by its id, the log-probability of naming the true origin of its slice after the same
    analysis."""
    judge, readable = ctx.role("verifier"), verdicts.select(lambda v: v.parsed.is_valid)
    assert isinstance(judge, SliceJudge)
    texts = [text for v in readable for text in (v.text, judge.flip_verdict(v.text))]
    both = ctx.write("verifier", [v.target for v in readable for _ in range(2)], texts)
    scores = [float(row.sum()) for row in ctx.compute_logprobs("verifier", both)]
    out = {}
    for verdict, own, other in zip(readable, scores[::2], scores[1::2], strict=True):
        right = verdict.verification.final == is_reference(verdict.target)
        out[verdict.id] = (own if right else other) - float(np.logaddexp(own, other))
    return out
