"""Credit for the turns of a conversation: each turn has rewards and a baseline of its own.

Invariant: what a turn is paid reaches the tokens of that turn alone, never those of another, nor what others said in between.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from milonga.credit.tokens import outcome_advantages
from milonga.objectives import Objective
from milonga.types import Floats, Trace, Traces

TurnAggregate = Literal["sum_of_turn_means", "token_mean", "sum"]
"""What a conversation's score is made of: the means over its turns, added; the mean over all tokens of its seat; their sum."""


def turn_alone(trace: Trace, turn: int) -> Trace:
    """The conversation with one of its turns trained, and nothing else."""
    start, end = trace.turns[turn]
    kept = [replace(s, trained=s.trained and start <= s.start and s.end <= end) for s in trace.segments]
    return replace(trace, segments=tuple(kept))


def progress_reward(first: Floats, second: Floats, alpha: float) -> Floats:
    """What a second attempt is paid: being right, and the progress from the first, alpha times (SCoRe)."""
    return second + alpha * (second - first)


def turn_sums(numbers: Sequence[Floats], factors: Sequence[Floats], traces: Traces) -> list[list[float]]:
    """Of numbers at tokens, the sum over each turn of each conversation, every token times its factor."""
    weighed = [row * factor for row, factor in zip(numbers, factors, strict=True)]
    return [[float(row[start:end].sum()) for start, end in trace.turns] for row, trace in zip(weighed, traces, strict=True)]


def turn_factors(traces: Traces, how: TurnAggregate) -> list[Floats]:
    """What each token counts in the score of its conversation, so that the sum over tokens is what `how` says."""
    out = []
    for trace in traces:
        row, whole = np.zeros(len(trace.ids)), sum(end - start for start, end in trace.turns)
        for start, end in trace.turns:
            row[start:end] = {"sum_of_turn_means": 1 / (end - start), "token_mean": 1 / whole, "sum": 1.0}[how]
        out.append(row)
    return out


def turn_advantages(
    rewards: Sequence[Floats],
    traces: Traces,
    groups: Sequence[Hashable],
    objective: Objective,
    penalties: list[Floats] | None = None,
) -> list[Floats]:
    """Advantages of `rewards[k][i]`, the reward of turn k of conversation i.

    Turns are compared within their group with the same turn of the other conversations: rewards of different scale never
    share a baseline. `penalties` are costs of single tokens inside the reward of their own turn.
    """
    total = [np.zeros(len(trace.ids)) for trace in traces]
    for turn, reward in enumerate(rewards):
        alone = Traces(turn_alone(trace, turn) for trace in traces)
        costs = None if penalties is None else [cost * trace.mask for cost, trace in zip(penalties, alone, strict=True)]
        for so_far, more in zip(total, outcome_advantages(reward, alone, groups, objective, costs), strict=True):
            so_far += more
    return total
