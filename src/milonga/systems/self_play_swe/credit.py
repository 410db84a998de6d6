"""Rewards of self-play on repositories: what a bug is worth to the injector, by how often it is repaired."""

from __future__ import annotations

INVALID = -1.0
"""The reward of an artifact that fails a check."""


def learnability_reward(solved: float) -> float:
    """r_L: return 1 - s where a task is sometimes solved, 0 where always or never. NaN stays NaN."""
    return 0.0 if solved in (0.0, 1.0) else 1.0 - solved


def injector_reward(solved: float, alpha: float) -> float:
    """Return the reward of a valid bug: -alpha where all or none of the attempts repair it, else 1 - (1 + alpha) s.

    This is (1 + alpha) r_L(s) - alpha: among valid bugs alpha changes nothing that normalisation would not undo, and only sets
    how far they lie above an invalid one.
    """
    return (1 + alpha) * learnability_reward(solved) - alpha


def expected_injector_reward(rate: float, attempts: int, alpha: float) -> float:
    """Return the mean of `injector_reward` over `attempts` independent attempts that each succeed with this rate.

    1 - (1 + alpha) (p + (1 - p)^G): over s it is linear but for the one point s = 0. So it peaks at 1 - G^(-1 / (G - 1)).
    """
    return 1 - (1 + alpha) * (rate + (1 - rate) ** attempts)
