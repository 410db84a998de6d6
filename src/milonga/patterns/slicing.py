"""Shared parts of recipes with a slice judge: cutting slices, reference solutions, and the log-probability of a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from milonga.context import Context
from milonga.credit import is_reference
from milonga.randomness import keyed_rng
from milonga.roles import SliceJudge, StepSolver
from milonga.roles.solver import demonstration_to_rollout
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
