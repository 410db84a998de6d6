"""Advantages for the turns of a conversation: each turn has rewards and a baseline of its own.

Invariant: the reward of a turn reaches the tokens of that turn alone, never those of another, nor what others said in between.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from milonga.credit.tokens import outcome_advantages
from milonga.objectives import Estimator
from milonga.types import Floats, PerToken, Rollout, Rollouts

TurnAggregate = Literal["sum_of_turn_means", "token_mean", "sum"]
"""How a conversation's score is aggregated: the sum of the means over its turns; the mean over all tokens of its agent; their
sum."""


def isolate_turn(rollout: Rollout, turn: int) -> Rollout:
    """Return the conversation with the trained mask restricted to one of its turns."""
    start, end = rollout.turn_spans[turn]
    kept = [replace(s, trained=s.trained and start <= s.start and s.end <= end) for s in rollout.segments]
    return replace(rollout, segments=tuple(kept))


def progress_reward(first: Floats, second: Floats, alpha: float) -> Floats:
    """Return the reward of a second attempt: its correctness plus alpha times its progress over the first (SCoRe)."""
    return second + alpha * (second - first)


def sum_turns(numbers: Sequence[PerToken], factors: Sequence[PerToken], rollouts: Rollouts) -> list[list[float]]:
    """Return the sum over each turn of each conversation, every token value times its factor. Input: one float array per
    rollout."""
    weighed = [row * factor for row, factor in zip(numbers, factors, strict=True)]
    return [
        [float(row[start:end].sum()) for start, end in rollout.turn_spans]
        for row, rollout in zip(weighed, rollouts, strict=True)
    ]


def make_token_factors(rollouts: Rollouts, how: TurnAggregate) -> list[PerToken]:
    """Return the factor of each token, so that the weighted sum over tokens is the aggregate `how`. One float array per
    rollout."""
    out = []
    for rollout in rollouts:
        row, whole = np.zeros(len(rollout.ids)), sum(end - start for start, end in rollout.turn_spans)
        for start, end in rollout.turn_spans:
            row[start:end] = {"sum_of_turn_means": 1 / (end - start), "token_mean": 1 / whole, "sum": 1.0}[how]
        out.append(row)
    return out


def turn_advantages(
    rewards: Sequence[Floats],
    rollouts: Rollouts,
    groups: Sequence[Hashable],
    estimator: Estimator,
    penalties: list[PerToken] | None = None,
) -> list[PerToken]:
    """Return token advantages from `rewards[k][i]`, the reward of turn k of conversation i. One float array per rollout.

    A turn is compared within its group with the same turn of the other conversations: rewards of different scale never share a
    baseline. `penalties` are per-token costs inside the reward of their own turn.
    """
    total = [np.zeros(len(rollout.ids)) for rollout in rollouts]
    for turn, reward in enumerate(rewards):
        alone = Rollouts(isolate_turn(rollout, turn) for rollout in rollouts)
        costs = None if penalties is None else [cost * rollout.mask for cost, rollout in zip(penalties, alone, strict=True)]
        for so_far, more in zip(total, outcome_advantages(reward, alone, groups, estimator, costs), strict=True):
            so_far += more
    return total
