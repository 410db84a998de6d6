"""Majority-vote rewards without ground truth: the most frequent answer replaces the label (TTRL, arXiv 2504.16084).

Answers are given as class numbers (`Task.group_equal_answers`), so that two forms of one answer never split a vote; None is a
sample without an answer, which does not vote.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from milonga.credit.baselines import group_rows
from milonga.types import Rollouts

Answer = int | None


@dataclass(frozen=True)
class Vote:
    """The result of a majority vote among samples of one problem."""

    winner: Answer
    """The most frequent answer; None where nobody gave one."""
    share: float
    """The share of all samples that gave it, those without an answer included."""


def majority_vote(answers: Sequence[Answer], rng: random.Random) -> Vote:
    """Return the most frequent answer; ties are broken at random, not by order."""
    counts = Counter(answer for answer in answers if answer is not None)
    most = max(counts.values(), default=0)
    leaders = sorted(answer for answer, count in counts.items() if count == most)
    return Vote(rng.choice(leaders) if leaders else None, most / len(answers) if answers else 0.0)


def agreement_rewards(answers: Sequence[Answer], label: Answer) -> list[float]:
    """Return reward 1 for each sample whose answer is the label, else 0; all 0 where there is no label."""
    return [float(answer is not None and answer == label) for answer in answers]


def leave_one_out_rewards(answers: Sequence[Answer], rng: random.Random) -> list[float]:
    """Return reward 1 for each sample whose answer is the majority of all the other samples: no sample votes for itself."""
    left_out = [majority_vote([*answers[:i], *answers[i + 1 :]], rng).winner for i in range(len(answers))]
    return [agreement_rewards([answer], label)[0] for answer, label in zip(answers, left_out, strict=True)]


def keep_first_samples(rollouts: Rollouts, count: int) -> Rollouts:
    """Keep the first `count` rollouts of each problem, regardless of what they say."""
    keep = {row for rows in group_rows(rollouts.problem_ids) for row in rows[:count]}
    return Rollouts(rollout for row, rollout in enumerate(rollouts) if row in keep)


def verdict_consistency(verdicts: Sequence[bool | None]) -> list[float]:
    """Return for each verdict the share of the other readable ones that agree; 0 for an unreadable verdict, and for a single
    one."""
    out = []
    for i, said in enumerate(verdicts):
        others = [other for j, other in enumerate(verdicts) if j != i and other is not None]
        out.append(sum(other == said for other in others) / len(others) if said is not None and others else 0.0)
    return out
