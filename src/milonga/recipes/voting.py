"""Majority votes and verdict shares that replace the truth in recipes without it.

Only the functions for measurement look at a grade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from milonga.credit.votes import Answer, Vote, agreement_rewards, majority_vote, verdict_consistency
from milonga.evals.metrics import mean
from milonga.table import Table
from milonga.tasks.base import make_keyed_rng
from milonga.types import Floats, Problem, Trace, Traces


@dataclass(frozen=True)
class Ballot:
    """The majority vote on one problem, from the answers alone: no grade is looked at."""

    voters: Traces
    answers: list[Answer]
    """The answer of each voter, as the number of its class."""
    vote: Vote
    gives: dict[str, float]
    """Solution id, voter or not, to 1 if its answer is the one that won, else 0."""


def tally_votes(table: Table, voters: Traces, others: Iterable[Trace] = ()) -> dict[str, Ballot]:
    """Return the vote on each problem, by its id. `others` are compared with the winner and do not vote."""
    return {problem: tally_problem(table, mine, rest) for problem, (mine, rest) in group_by_problem(voters, others).items()}


def tally_problem(table: Table, voters: Traces, others: Traces) -> Ballot:
    """Count the votes on one problem."""
    everyone = [*voters, *others]
    answers = table.setting.task.group_equal_answers([trace.reading.value.answer for trace in everyone])
    own = answers[: len(voters)]
    found = majority_vote(own, make_keyed_rng("vote", table.setting.seed, table.turn, voters[0].problem.id))
    told = agreement_rewards(answers, found.winner)
    return Ballot(voters, own, found, {trace.id: same for trace, same in zip(everyone, told, strict=True)})


def group_by_problem(voters: Traces, others: Iterable[Trace]) -> dict[str, tuple[Traces, Traces]]:
    """Group voters and others by problem; a problem without voters has no vote."""
    rest: dict[str, list[Trace]] = {}
    for trace in others:
        rest.setdefault(trace.problem.id, []).append(trace)
    mine: dict[str, list[Trace]] = {}
    for trace in voters:
        mine.setdefault(trace.problem.id, []).append(trace)
    return {problem: (Traces(group), Traces(rest.get(problem, []))) for problem, group in mine.items()}


def collect_final_verdicts(solutions: Traces, checks: Traces) -> list[list[bool]]:
    """Return the readable final verdicts on each solution."""
    said: dict[str, list[bool]] = {}
    for check in checks:
        said.setdefault(check.subject.id, []).extend([] if (final := check.reading.value.final) is None else [final])
    return [said.get(solution.id, []) for solution in solutions]


def mean_final_verdicts(solutions: Traces, checks: Traces) -> Floats:
    """Return for each solution the share of final verdicts that say right; 0 without an answer, NaN where no verdict can be
    parsed."""
    found = [sum(said) / len(said) if said else float("nan") for said in collect_final_verdicts(solutions, checks)]
    return np.array([b if s.reading.value.answer is not None else 0.0 for s, b in zip(solutions, found, strict=True)])


def mean_step_verdicts(solutions: Traces, checks: Traces) -> list[list[float] | None]:
    """Return the mean verdict on each step, from -1 to +1, over the checks that judge every step; None where there is none."""
    said: dict[str, list[tuple[bool, ...]]] = {}
    for check in checks:
        verdicts = check.reading.value.steps
        if verdicts and len(verdicts) == len(check.subject.steps):
            said.setdefault(check.subject.id, []).append(verdicts)
    rows = [said.get(solution.id) for solution in solutions]
    return [None if row is None else [2 * float(share) - 1 for share in np.mean(row, axis=0)] for row in rows]


def winner_correctness(cast: Ballot) -> float:
    """Return whether the winning answer is right, by the hidden truth (for measurement); 0 where nobody gave an answer."""
    return max((trace.correct for trace in cast.voters if cast.gives[trace.id]), default=0.0)


def label_correctness(cast: Ballot) -> list[float]:
    """Return for each voter whether its pseudo-label is right, by the hidden truth (for measurement); NaN where it is
    unknown."""
    return [trace.correct if cast.gives[trace.id] else 1.0 - trace.correct for trace in cast.voters]


def collusion_metrics(found: list[Ballot], checks: Traces) -> dict[str, float | None]:
    """Return collusion metrics: how often the vote is wrong, and how often the verifier endorses it then.

    The verifier endorses a vote if at least half of its readable verdicts on the solutions with the winning answer say right.
    """
    wrong, endorsed, agreed = [], [], []
    for cast in found:
        given = Traces(trace for trace in cast.voters if cast.gives[trace.id])
        said = [final for some in collect_final_verdicts(given, checks) for final in some]
        right = winner_correctness(cast)
        if not np.isnan(right):
            wrong.append(right == 0.0)
            endorsed.append(bool(said) and 2 * sum(said) >= len(said))
        agreed += [mean(verdict_consistency(some)) for some in collect_final_verdicts(cast.voters, checks) if len(some) > 1]
    return {
        "collusion": mean([w and e for w, e in zip(wrong, endorsed, strict=True)]),
        "consensus_wrong": mean(wrong),
        "endorsement": mean([e for w, e in zip(wrong, endorsed, strict=True) if w]),
        "label_accuracy": mean([right for cast in found for right in label_correctness(cast)]),
        "majority_share": mean([cast.vote.share for cast in found]),
        "verdict_consistency": mean([share for share in agreed if share is not None]),
    }


def majority_correctness(table: Table, solutions: Traces, right: Callable[[Trace], float]) -> float:
    """Return the correctness of the majority answer, as `right` grades a solution that gives it; 0 where there is no answer."""
    cast = tally_problem(table, solutions, Traces([]))
    return next((right(trace) for trace in solutions if cast.gives[trace.id]), 0.0)


def majority_at_budget(table: Table, seat: str, problems: Sequence[Problem], tokens: float) -> list[float]:
    """Return for each problem whether the majority of plain solutions is right, at a budget of about so many sampled tokens.

    This is the baseline for anything that spends the same tokens otherwise.
    """
    first = table.ask(seat, problems)
    each = sum(trace.length for trace in first) / len(problems)
    more = round(tokens / (each * len(problems))) - 1 if each else 0
    voters = [*first, *(table.ask(seat, problems, more) if more > 0 else ())]
    return [winner_correctness(cast) for cast in tally_votes(table, Traces(voters)).values()]


def grade_by_truth(solution: Trace) -> float:
    """Return the grade of a solution."""
    return solution.correct


def make_majority_grader(table: Table, solutions: Traces, least: float) -> Callable[[Trace], float]:
    """Return a grader by majority vote: whether a solution gives the majority answer; NaN where fewer than `least` agree."""
    found = tally_votes(table, solutions)

    def right(solution: Trace) -> float:
        cast = found[solution.problem.id]
        return cast.gives[solution.id] if cast.vote.share >= least else float("nan")

    return right
