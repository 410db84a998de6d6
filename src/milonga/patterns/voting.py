"""Majority votes and verdict shares that replace the truth in recipes without it.

Only the functions for measurement look at a grade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from milonga.context import Context
from milonga.credit.votes import Answer, Vote, agreement_rewards, majority_vote, verdict_consistency
from milonga.evals.metrics import mean
from milonga.types import Floats, Problem, Rollout, Rollouts


@dataclass(frozen=True)
class Ballot:
    """The majority vote on one problem, from the answers alone: no grade is looked at."""

    voters: Rollouts
    answers: list[Answer]
    """The answer of each voter, as the number of its class."""
    vote: Vote
    gives: dict[str, float]
    """Solution id, voter or not, to 1 if its answer is the one that won, else 0."""


def tally_votes(ctx: Context, voters: Rollouts, others: Iterable[Rollout] = ()) -> dict[str, Ballot]:
    """Return the vote on each problem, by its id. `others` are compared with the winner and do not vote."""
    return {problem: _tally_problem(ctx, mine, rest) for problem, (mine, rest) in _group_by_problem(voters, others).items()}


def _tally_problem(ctx: Context, voters: Rollouts, others: Rollouts) -> Ballot:
    """Count the votes on one problem."""
    everyone = [*voters, *others]
    answers = ctx.task.group_equal_answers([rollout.solution.answer for rollout in everyone])
    own = answers[: len(voters)]
    found = majority_vote(own, ctx.rng("vote", voters[0].problem.id))
    agrees = agreement_rewards(answers, found.winner)
    return Ballot(voters, own, found, {rollout.id: same for rollout, same in zip(everyone, agrees, strict=True)})


def _group_by_problem(voters: Rollouts, others: Iterable[Rollout]) -> dict[str, tuple[Rollouts, Rollouts]]:
    """Group voters and others by problem; a problem without voters has no vote."""
    rest: dict[str, list[Rollout]] = {}
    for rollout in others:
        rest.setdefault(rollout.problem.id, []).append(rollout)
    mine: dict[str, list[Rollout]] = {}
    for rollout in voters:
        mine.setdefault(rollout.problem.id, []).append(rollout)
    return {problem: (Rollouts(group), Rollouts(rest.get(problem, []))) for problem, group in mine.items()}


def _collect_final_verdicts(solutions: Rollouts, checks: Rollouts) -> list[list[bool]]:
    """Return the readable final verdicts on each solution."""
    found: dict[str, list[bool]] = {}
    for check in checks:
        found.setdefault(check.target.id, []).extend([] if (final := check.verification.final) is None else [final])
    return [found.get(solution.id, []) for solution in solutions]


def mean_final_verdicts(solutions: Rollouts, checks: Rollouts) -> Floats:
    """Return for each solution the share of final verdicts that say right; 0 without an answer, NaN where no verdict can be
    parsed."""
    found = [
        sum(verdicts) / len(verdicts) if verdicts else float("nan") for verdicts in _collect_final_verdicts(solutions, checks)
    ]
    return np.array([b if s.solution.answer is not None else 0.0 for s, b in zip(solutions, found, strict=True)])


def mean_step_verdicts(solutions: Rollouts, checks: Rollouts) -> list[list[float] | None]:
    """Return the mean verdict on each step, from -1 to +1, over the checks that reach it: one may stop at its first wrong step.
    NaN where none does, None where no check can be read."""
    by_solution: dict[str, list[list[float]]] = {}
    for check in checks:
        verdicts, count = check.verification.steps, len(check.target.steps)
        if verdicts and len(verdicts) <= count:
            padded = [float(right) for right in verdicts] + [float("nan")] * (count - len(verdicts))
            by_solution.setdefault(check.target.id, []).append(padded)
    rows = [by_solution.get(solution.id) for solution in solutions]
    return [None if row is None else [_mean_sign(column) for column in zip(*row, strict=True)] for row in rows]


def _mean_sign(column: Sequence[float]) -> float:
    """Return the mean of known verdicts (0 or 1) as a sign from -1 to +1; NaN if there is none."""
    known = [value for value in column if not np.isnan(value)]
    return 2 * float(np.mean(known)) - 1 if known else float("nan")


def winner_correctness(ballot: Ballot) -> float:
    """Return whether the winning answer is right, by the hidden truth (for measurement); 0 where nobody gave an answer."""
    return max((rollout.correct for rollout in ballot.voters if ballot.gives[rollout.id]), default=0.0)


def label_correctness(ballot: Ballot) -> list[float]:
    """Return for each voter whether its pseudo-label is right, by the hidden truth (for measurement); NaN where it is
    unknown."""
    return [rollout.correct if ballot.gives[rollout.id] else 1.0 - rollout.correct for rollout in ballot.voters]


def collusion_metrics(found: list[Ballot], checks: Rollouts) -> dict[str, float | None]:
    """Return collusion metrics: how often the vote is wrong, and how often the verifier endorses it then.

    The verifier endorses a vote if at least half of its readable verdicts on the solutions with the winning answer say right.
    """
    wrong, endorsed, agreed = [], [], []
    for ballot in found:
        given = Rollouts(rollout for rollout in ballot.voters if ballot.gives[rollout.id])
        verdicts = [final for some in _collect_final_verdicts(given, checks) for final in some]
        right = winner_correctness(ballot)
        if not np.isnan(right):
            wrong.append(right == 0.0)
            endorsed.append(bool(verdicts) and 2 * sum(verdicts) >= len(verdicts))
        agreed += [mean(verdict_consistency(some)) for some in _collect_final_verdicts(ballot.voters, checks) if len(some) > 1]
    return {
        "collusion": mean([w and e for w, e in zip(wrong, endorsed, strict=True)]),
        "consensus_wrong": mean(wrong),
        "endorsement": mean([e for w, e in zip(wrong, endorsed, strict=True) if w]),
        "label_accuracy": mean([right for ballot in found for right in label_correctness(ballot)]),
        "majority_share": mean([ballot.vote.share for ballot in found]),
        "verdict_consistency": mean([share for share in agreed if share is not None]),
    }


def majority_correctness(ctx: Context, solutions: Rollouts, right: Callable[[Rollout], float]) -> float:
    """Return the correctness of the majority answer, as `right` grades a solution that gives it; 0 where there is no answer."""
    ballot = _tally_problem(ctx, solutions, Rollouts([]))
    return next((right(rollout) for rollout in solutions if ballot.gives[rollout.id]), 0.0)


def majority_at_budget(ctx: Context, agent: str, problems: Sequence[Problem], tokens: float) -> list[float]:
    """Return for each problem whether the majority of plain solutions is right, at a budget of about so many sampled tokens.

    This is the baseline for anything that spends the same tokens otherwise.
    """
    first = ctx.ask(agent, problems)
    each = sum(rollout.length for rollout in first) / len(problems)
    more = round(tokens / (each * len(problems))) - 1 if each else 0
    voters = [*first, *(ctx.ask(agent, problems, more) if more > 0 else ())]
    return [winner_correctness(ballot) for ballot in tally_votes(ctx, Rollouts(voters)).values()]


def grade_by_truth(solution: Rollout) -> float:
    """Return the grade of a solution."""
    return solution.correct


def get_true_answer(problem: Problem) -> str | None:
    """Return the answer that is known to be right."""
    return problem.answer


def make_majority_grader(found: Mapping[str, Ballot], least: float) -> Callable[[Rollout], float]:
    """Return a grader by majority vote: whether a solution gives the majority answer; NaN where fewer than `least` agree."""

    def right(solution: Rollout) -> float:
        ballot = found[solution.problem.id]
        return ballot.gives[solution.id] if ballot.vote.share >= least else float("nan")

    return right


def make_majority_labeller(found: Mapping[str, Ballot], least: float) -> Callable[[Problem], str | None]:
    """Return what names the majority answer to a problem, as the first who gave it wrote it; None where fewer than `least`
    agree."""

    def answer(problem: Problem) -> str | None:
        ballot = found[problem.id]
        giving = (voter.solution.answer for voter in ballot.voters if ballot.gives[voter.id])
        return next(giving, None) if ballot.vote.share >= least else None

    return answer
