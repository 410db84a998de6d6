"""Metrics of a verifier as it is used: how sure it is, and whom it chooses among the samples of a problem.

A soft verdict is a verifier's probability that a solution is right: its score, or what the probabilities of its sampled
verdicts say; of a verifier that has neither, its verdict as 0 or 1. Invariant: what cannot be read has none. It is left out of
soft metrics, which say over how many solutions they are, and is never chosen before what can be read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from milonga.evals.metrics import Steps, calibration_error, cut_at_first_error, mean, order_accuracy, pass_at_k
from milonga.evals.reliability import brier_score
from milonga.evals.subsets import best_of_n_accuracy, vote_accuracy
from milonga.types import Rollout, Rollouts, Verification


def get_soft_verdict(value: Verification) -> float | None:
    """Return the probability that the verifier gives a solution of being right; None if its verdict cannot be read."""
    if value.final is None:
        return None
    known = value.soft if value.score is None else value.score
    return float(value.final) if known is None else known


def get_soft_steps(value: Verification) -> tuple[float, ...] | None:
    """Return the same for each step; None if the verifier judges no steps, or they cannot be read."""
    if value.steps is None:
        return None
    return value.step_scores or value.soft_steps or tuple(map(float, value.steps))


def collect_soft_verdicts(checks: Rollouts) -> list[tuple[float, Rollout]]:
    """Collect the soft verdicts that can be read on solutions with a known grade, each with its solution."""
    said = [(get_soft_verdict(check.verification), check.target) for check in checks]
    return [(soft, target) for soft, target in said if soft is not None and not np.isnan(target.correct)]


def soft_metrics(checks: Rollouts) -> dict[str, float | None]:
    """Compute how soft verdicts order right and wrong solutions, and whether they are calibrated; the same order of steps, up
    to the first wrong one."""
    judged = collect_soft_verdicts(checks)
    soft, right = [said for said, _ in judged], [target.correct for _, target in judged]
    steps = [
        pair
        for check in checks
        if (said := get_soft_steps(check.verification)) is not None and (truth := _get_step_truth(check.target, len(said)))
        for pair in zip(said, cut_at_first_error(truth), strict=False)
    ]
    return {
        "soft_auroc": order_accuracy(soft, right),
        "soft_calibration_error": calibration_error(soft, [value == 1.0 for value in right]),
        "soft_brier": brier_score(soft, [value == 1.0 for value in right]),
        "soft_step_auroc": order_accuracy([said for said, _ in steps], [float(true) for _, true in steps]),
        "soft_judged": float(len(judged)),
    }


def collect_step_truth(checks: Rollouts) -> list[Steps]:
    """Collect step verdicts that can be read, each with what is true of the steps, where that is known."""
    read = [(check.verification.steps, check.target) for check in checks]
    return [(said, truth) for said, target in read if said is not None and (truth := _get_step_truth(target, len(said)))]


def _get_step_truth(target: Rollout, judged: int) -> Sequence[bool]:
    """Return the truth of a solution's steps; empty where it is unknown, or where more steps were judged than there are."""
    steps = target.grade.steps if target.grade is not None else None
    return steps if steps is not None and judged <= len(steps) else ()


def choice_metrics(solutions: Rollouts, checks: Rollouts) -> dict[str, float | None]:
    """Compute what the verifier is worth to choose among all samples of a problem: accuracy of the one with the highest soft
    verdict (the mean of several checks, 0 for one that cannot be read), beside that of any sample, of the most frequent answer,
    and of a perfect choice.

    Over the problems of which every sample is graded and judged; ties are broken at random, in expectation.
    """
    said: dict[str, list[float | None]] = {}
    for check in checks:
        said.setdefault(check.target.id, []).append(get_soft_verdict(check.verification))
    groups: dict[str, list[Rollout]] = {}
    for solution in solutions:
        groups.setdefault(solution.problem.id, []).append(solution)
    whole = [g for g in groups.values() if all(t.id in said and not np.isnan(t.correct) for t in g)]
    values = [_measure_choice(group, [_rank_by_verdicts(said[t.id]) for t in group]) for group in whole]
    every, best, majority, perfect = ([row[k] for row in values] for k in range(4))
    gains = [mine - vote for mine, vote in zip(best, majority, strict=True)]
    return {
        "choice/mean": mean(every),
        "choice/verifier": mean(best),
        "choice/majority": mean(majority),
        "choice/pass": mean(perfect),
        "choice/verifier_minus_majority": mean(gains),
        "choice/problems": float(len(whole)),
    }


def _rank_by_verdicts(said: Sequence[float | None]) -> float:
    """Return the rank of one solution: the mean of its soft verdicts; below all of these where none can be read."""
    return -1.0 if all(one is None for one in said) else sum(one or 0.0 for one in said) / len(said)


def _measure_choice(group: Sequence[Rollout], ranks: Sequence[float]) -> tuple[float, float, float, float]:
    """Measure one problem: any sample, the best by rank, the majority, a perfect choice."""
    right, n = [t.correct for t in group], len(group)
    majority = vote_accuracy([t.solution.answer for t in group], right, [1.0] * n, n)
    return sum(right) / n, best_of_n_accuracy(ranks, right, n), majority, pass_at_k(int(sum(right)), n, n)
