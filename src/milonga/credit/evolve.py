"""Credit of Multi-Agent Evolve: what a judge's scores, from 0 to 1, are worth to who asked and to who answered."""

from __future__ import annotations

from collections.abc import Sequence


def mean_score(scores: Sequence[float]) -> float:
    """The mean of readable scores; NaN where there are none: an unreadable judgement is never a neutral one half."""
    return sum(scores) / len(scores) if scores else float("nan")


def difficulty(score: float, zero_at_extremes: bool = False) -> float:
    """1 - mean judged score of the answers. Plain, it is highest where nobody can answer; with zeros at both ends, such
    questions earn nothing."""
    return 0.0 if zero_at_extremes and score in (0.0, 1.0) else 1.0 - score


def proposer_reward(quality: float, hard: float, format: float, gate: float, below_gate: bool = False) -> float:
    """(Q + Dif + F) / 3; nothing for what is no question. Below the gate, as in the released code, Dif does not count."""
    if not format:
        return 0.0
    return (quality + (hard if below_gate or quality >= gate else 0.0) + format) / 3


def solver_reward(score: float, format: float) -> float:
    """(V + F) / 2; NaN where the judgement could not be read."""
    return (score + format) / 2
