"""Rewards and baselines of search self-play: what a proposer earns for a question, and what that is compared with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from milonga.credit.baselines import normalise
from milonga.types import Floats

Difficulty = Literal["one_minus", "window", "constant"]
Baseline = Literal["batch_mean", "group", "ema", "none"]


def question_reward(solved: float, how: Difficulty, low: float = 0.0, high: float = 1.0) -> float:
    """Return the reward of a question that is solved in the share `solved` of all attempts.

    one_minus: highest where nobody solves it. window: 4 (low + s)(high - s) where some do and some do not, else 0. constant: 1.
    """
    if how == "one_minus":
        return 1.0 - solved
    if how == "window":
        return 4 * (low + solved) * (high - solved) if 0 < solved < 1 else 0.0
    return 1.0


def subtract_baseline(rewards: Floats, groups: Sequence[Hashable], how: Baseline, running: float = 0.0) -> Floats:
    """Return advantages, shape (rows,): rewards less a baseline, which is the batch mean, the mean of the proposals for the
    same answer, a running mean, or 0.

    Without a baseline every proposal that earns anything is pushed up, the worse ones too. Unknown rewards (NaN) count nowhere.
    """
    if how == "batch_mean":
        return normalise(rewards, ["batch"] * len(rewards), "centre")
    if how == "group":
        return normalise(rewards, groups, "centre")
    return np.nan_to_num(rewards - (running if how == "ema" else 0.0))
