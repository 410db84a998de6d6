"""Step labels and step rewards from Monte Carlo completions (Math-Shepherd): the value of a prefix under one completer.

Such a value says whether the right answer can be reached from here, not whether the step is right: a wrong step that is often
repaired has a high one, a right step of a hard problem a low one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from milonga.credit.baselines import group_rows
from milonga.credit.tokens import StepCredit, step_rewards_to_tokens
from milonga.objectives import Estimator
from milonga.types import PerToken, Rollouts

StepReward = Literal["centred", "difference", "raw"]


def hard_labels(reached: Sequence[float], tau: float = 0.0) -> list[float]:
    """Return 1 where more than a share tau of the completions arrived at the right answer, 0 elsewhere; unknown stays NaN.

    With tau = 0 one success is enough, so that labels rise with the number of completions: 1 - (1 - v)^n for a true rate v.
    """
    return [float("nan") if np.isnan(share) else float(share > tau) for share in reached]


def find_first_zero(labels: Sequence[float]) -> int:
    """Return the index of the first label that is 0 (or verdict that is False), -1 where there is none."""
    return next((k for k, label in enumerate(labels) if label == 0), -1)


def fill_after_zero(labels: Sequence[float], fill: float) -> list[float]:
    """Replace all labels after the first 0 by `fill`: 0, since nothing leads back from a dead end, or NaN, for no label."""
    first = find_first_zero(labels)
    return [label if first == -1 or k <= first else fill for k, label in enumerate(labels)]


def step_reward_advantages(
    scores: Sequence[Sequence[float] | None],
    rollouts: Rollouts,
    groups: Sequence[Hashable],
    estimator: Estimator,
    how: StepReward,
) -> list[PerToken]:
    """Return token advantages from a verifier's step scores p_1 … p_K: each token gets the rewards of the steps that end at or
    after it.

    centred: whitened over the steps of the group, divided by K, so that more steps are worth nothing by themselves. difference:
    p_k - p_{k-1}, where p_0 is the group's mean of p_1; they telescope to p_K - p_0. raw: p_k, which pays for every step. One
    float array per rollout, aligned with its ids.
    """
    if how == "centred":
        return StepCredit().advantages(scores, rollouts, groups, estimator)
    out = [np.zeros(len(rollout.ids)) for rollout in rollouts]
    for rows in group_rows(groups):
        judged = [(row, np.asarray(scores[row], dtype=float)) for row in rows if scores[row]]
        start = float(np.mean([values[0] for _, values in judged])) if judged else 0.0
        for row, values in judged:
            out[row] = step_rewards_to_tokens(values if how == "raw" else np.diff(values, prepend=start), rollouts[row])
    return out
