"""Figures of a probe: what an agent's sampled outputs look like, and how much can be learned from them. Pure functions.

Shares lie between 0 and 1 and lengths are in tokens; None means unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from milonga.credit import has_both_outcomes
from milonga.evals import judge_metrics
from milonga.evals.evaluate import get_confidence, pass_metrics
from milonga.evals.metrics import find_first_wrong, majority_vote, mean, order_accuracy, process_f1
from milonga.types import Rollout, Rollouts, Verification

LearnsFrom = Literal["outcomes", "rewards", "examples", "nothing"]
"""What an agent learns from in its first turns: rewards by the grades of the task's problems; other rewards (by votes, or on
invented problems); examples, pairs or labels; nothing at all."""
GroupAnswers = Callable[[Sequence[str | None]], list[int | None]]
"""`Task.group_equal_answers`: equal answers get equal numbers."""


@dataclass(frozen=True)
class Asked:
    """An agent that is probed."""

    agent: str
    policy: str
    learns_from: LearnsFrom
    limit: int
    """Most tokens that an output may have."""


@dataclass(frozen=True)
class OutputFigures(Asked):
    """Figures of any agent's outputs."""

    outputs: int
    readable: float | None
    """Share with an answer (of solutions) or with a final verdict (of verifications)."""
    format: float | None
    """Mean format score, from 0 to 1."""
    truncated: float | None
    length: float | None
    length_95: float | None
    """The length that 95 % of the outputs do not exceed."""
    cut_at: int | None
    """The longest of the truncated outputs; shorter than the limit where the model's context ended first."""


@dataclass(frozen=True)
class SolverFigures(OutputFigures):
    """Figures of the agent that solves."""

    accuracy: float | None
    greedy: float | None
    majority: float | None
    """Accuracy of the most frequent answer to each problem."""
    pass_at_k: float | None
    """Share of problems that at least one solution solves."""
    signal: float | None
    """Share of problems whose solutions earn different rewards (right and wrong answers, or a reward of the user's own): only
    these have a gradient of outcome rewards."""
    unsound: float | None
    """Share of the right answers with a wrong step, or without steps."""


@dataclass(frozen=True)
class JudgeFigures(OutputFigures):
    """Figures of the agent that judges the solver's solutions."""

    positive_rate: float | None
    """Share that it calls right, of what can be read."""
    auroc: float | None
    """Of its confidence against the grades, over what can be read."""
    accuracy_on_right: float | None
    accuracy_on_wrong: float | None
    first_error_f1: float | None
    """F1 of the first error, as ProcessBench counts it, where the task knows its steps."""
    soft_auroc: float | None = None
    """Of its soft verdicts against the grades: a verifier that calls all solutions wrong may still order them."""
    soft_step_auroc: float | None = None
    """Of its soft verdicts on steps against their truth, up to the first wrong one, where the task knows its steps."""


def measure_solver(asked: Asked, solutions: Rollouts, greedy: Rollouts, group_answers: GroupAnswers) -> SolverFigures:
    """Measure sampled solutions, several of each problem, and one greedy solution of each."""
    right = [t.grade for t in solutions if t.grade is not None and t.grade.correct and t.grade.steps is not None]
    most = max(Counter(solutions.problem_ids).values(), default=1)
    return SolverFigures(
        **vars(asked),
        **_measure_outputs(solutions),
        accuracy=mean(solutions.correct),
        greedy=mean(greedy.correct),
        majority=mean([_score_majority(group, group_answers) for group in _group_by_problem(solutions)]),
        pass_at_k=pass_metrics(solutions, most)[f"pass@{most}"],
        signal=_share_mixed_groups(solutions),
        unsound=mean([not grade.is_sound for grade in right]),
    )


def measure_judge(asked: Asked, checks: Rollouts) -> JudgeFigures:
    """Measure verifications of solutions. A scorer writes nothing: it has no lengths."""
    judged = judge_metrics(checks)
    read = [(c.verification, c.target) for c in checks if is_readable(c)]
    known = [(c.verification.steps, c.target.grade.first_error) for c in checks if c.target.grade and c.target.grade.steps]
    labelled = [(find_first_wrong(steps), label) for steps, label in known if label is not None]
    return JudgeFigures(
        **vars(asked),
        **_measure_outputs(checks),
        positive_rate=mean([value.final is True for value, _ in read]),
        auroc=order_accuracy([get_confidence(value) for value, _ in read], [target.correct for _, target in read]),
        accuracy_on_right=judged["accuracy_on_right"],
        accuracy_on_wrong=judged["accuracy_on_wrong"],
        first_error_f1=process_f1([said for said, _ in labelled], [label for _, label in labelled])["f1"],
        soft_auroc=judged["soft_auroc"],
        soft_step_auroc=judged["soft_step_auroc"],
    )


def is_readable(rollout: Rollout) -> bool:
    """Whether a solution has an answer, or a verification a final verdict."""
    value = rollout.parsed.value
    return value.final is not None if isinstance(value, Verification) else rollout.solution.answer is not None


def _measure_outputs(rollouts: Rollouts) -> dict[str, Any]:
    """The figures that all agents have. Lengths are of what was sampled token by token, not of what was given or merged."""
    sampled = [t for t in rollouts if t.origin == "sampled"]
    lengths = [t.length for t in sampled if t.length]
    return {
        "outputs": len(rollouts),
        "readable": mean([is_readable(t) for t in rollouts]),
        "format": mean([t.parsed.format for t in rollouts]),
        "truncated": mean([t.finish == "length" for t in sampled]),
        "length": mean([float(length) for length in lengths]),
        "length_95": float(np.quantile(lengths, 0.95)) if lengths else None,
        "cut_at": max((t.length for t in sampled if t.finish == "length" and t.length), default=None),
    }


def _group_by_problem(rollouts: Rollouts) -> list[list[Rollout]]:
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.problem.id, []).append(rollout)
    return list(groups.values())


def _score_majority(group: Sequence[Rollout], group_answers: GroupAnswers) -> float:
    """Whether the most frequent answer of a group is right, the first seen on a tie; 0 where there is no answer, NaN where no
    answer is known to be right or wrong."""
    if all(np.isnan(t.correct) for t in group):
        return float("nan")
    classes = group_answers([t.solution.answer for t in group])
    winner = majority_vote(classes)
    return 0.0 if winner is None else group[classes.index(winner)].correct


def _share_mixed_groups(solutions: Rollouts) -> float | None:
    """Share of problems whose solutions earn different rewards, among those with at least two known ones."""
    mixed = dict(zip(solutions.problem_ids, has_both_outcomes(solutions.rewards, solutions.problem_ids), strict=True))
    known = Counter(t.problem.id for t in solutions if not np.isnan(t.reward))
    return mean([bool(mixed[problem]) for problem, count in known.items() if count > 1])
