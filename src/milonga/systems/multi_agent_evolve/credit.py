"""Rewards of Multi-Agent Evolve: what the judge's scores, from 0 to 1, are worth to the proposer and to the solver."""

from __future__ import annotations

from collections.abc import Sequence


def mean_score(scores: Sequence[float]) -> float:
    """Return the mean of the readable scores; NaN where there are none: an unreadable judgement is never a neutral one half."""
    return sum(scores) / len(scores) if scores else float("nan")


def difficulty_reward(score: float, zero_at_extremes: bool = False) -> float:
    """Return the difficulty reward of a question: 1 - the mean judged score of its answers.

    Plain, it is highest where nobody can answer; with `zero_at_extremes`, questions that all or none answer earn nothing.
    """
    return 0.0 if zero_at_extremes and score in (0.0, 1.0) else 1.0 - score


def proposer_reward(quality: float, hard: float, format: float, gate: float, below_gate: bool = False) -> float:
    """Return (Q + Dif + F) / 3; 0 for an unreadable question. Below the quality gate Dif counts only with `below_gate`
    (released code)."""
    if not format:
        return 0.0
    return (quality + (hard if below_gate or quality >= gate else 0.0) + format) / 3


def solver_reward(score: float, format: float) -> float:
    """Return (V + F) / 2; NaN where the judgement could not be read."""
    return (score + format) / 2
