"""Credit without truth: what many samples of one problem agree on takes the place of its answer (TTRL, arXiv 2504.16084).

Answers come as numbers of their classes (`Task.classes`), so that two forms of one answer never split a vote; None is a sample
without an answer, which does not vote.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from milonga.credit.baselines import members
from milonga.types import Traces

Answer = int | None


@dataclass(frozen=True)
class Vote:
    """What a group of samples agrees on."""

    winner: Answer
    """The most frequent answer; None where nobody gave one."""
    share: float
    """How many of all samples gave it, those without an answer included."""


def vote(answers: Sequence[Answer], rng: random.Random) -> Vote:
    """The most frequent answer; among equally frequent ones a random one, not the first that was seen."""
    counts = Counter(answer for answer in answers if answer is not None)
    most = max(counts.values(), default=0)
    leaders = sorted(answer for answer, count in counts.items() if count == most)
    return Vote(rng.choice(leaders) if leaders else None, most / len(answers) if answers else 0.0)


def agreement(answers: Sequence[Answer], label: Answer) -> list[float]:
    """1 for each sample whose answer is the label; where there is no label, nobody is right."""
    return [float(answer is not None and answer == label) for answer in answers]


def others_agreement(answers: Sequence[Answer], rng: random.Random) -> list[float]:
    """1 for each sample whose answer is the most frequent one among all the others: nobody votes for himself."""
    left_out = [vote([*answers[:i], *answers[i + 1 :]], rng).winner for i in range(len(answers))]
    return [agreement([answer], label)[0] for answer, label in zip(answers, left_out, strict=True)]


def reward_accuracy(wrong_winner: float, truth: float) -> float:
    """Share of samples that are rewarded rightly although a wrong answer won: all but those that gave it, and those that are
    right. The better errors are spread, the better the reward."""
    return 1.0 - wrong_winner - truth


def firsts(traces: Traces, count: int) -> Traces:
    """The first `count` traces of each problem: a slice of what was sampled, chosen by nothing that was sampled."""
    keep = {row for rows in members(traces.problems) for row in rows[:count]}
    return Traces(trace for row, trace in enumerate(traces) if row in keep)


def consistency(verdicts: Sequence[bool | None]) -> list[float]:
    """Of each verdict, the share of the other readable ones that say the same; 0 for what cannot be read, and for one alone."""
    out = []
    for i, said in enumerate(verdicts):
        others = [other for j, other in enumerate(verdicts) if j != i and other is not None]
        out.append(sum(other == said for other in others) / len(others) if said is not None and others else 0.0)
    return out
