"""Rewards of an adversarial game (APRM): one side corrupts right steps, the other detects the corruption. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AttackReward:
    """The reward of a rewritten step for the corruptor that wrote it: `top` if it is wrong and accepted, `middle` if it is
    wrong and caught, `bottom` if nothing was corrupted or it is no step at all.

    The bottom must lie below the middle: otherwise a corruptor that repeats the step has won without corrupting.
    """

    top: float = 1.0
    middle: float = 0.0
    bottom: float = -1.0

    def __post_init__(self) -> None:
        if not self.bottom < self.middle < self.top:
            raise ValueError(f"rewards of a corruptor must rise from bottom to top: {self.bottom}, {self.middle}, {self.top}")

    def __call__(self, right: bool | None, accepted: bool) -> float:
        """Return the reward. `right` is what the oracle says of the rewritten step; None where it is no step, and was shown to
        nobody. A step of which the oracle says nothing has no reward: it does not belong here."""
        if right is None or right:
            return self.bottom
        return self.top if accepted else self.middle


def balanced_accuracy(predicted: Sequence[bool], truth: Sequence[bool]) -> float | None:
    """Return the mean of the true positive rate and the true negative rate; None where one of the two classes is missing."""
    right = [s for s, t in zip(predicted, truth, strict=True) if t]
    wrong = [not s for s, t in zip(predicted, truth, strict=True) if not t]
    return float(np.mean(right) + np.mean(wrong)) / 2 if right and wrong else None
