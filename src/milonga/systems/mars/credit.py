"""Advantages for two agents that share one outcome (MARS): each has its own baseline, and sample counts are balanced.

Invariant: advantages first, balance afterwards. Resampling and weighting never change a baseline.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from milonga.credit.baselines import group_rows
from milonga.types import Floats

Balance = Literal["weight", "uniform", "abs_adv", "none"]
Norm = Literal["sample", "trajectory"]
Std = Literal["population", "sample"]
CAP = 4.0
"""The largest weight of one sample: copies of few samples are not new data."""


def standard_scores(
    rewards: Floats, groups: Sequence[Hashable], weights: Floats | None = None, std: Std = "population"
) -> Floats:
    """Return (r - mean) / std within groups, each row counted by its weight; 0 in a group of equal rewards, or of one row.

    Where trajectories are to count alike, each row of a trajectory with n rows has weight 1 / n. Arrays have shape (rows,).
    """
    counts = np.ones(len(rewards)) if weights is None else weights
    out = np.zeros(len(rewards))
    for rows in group_rows(groups):
        r, w = rewards[rows], counts[rows]
        total = float(w.sum())
        mean = float((w * r).sum() / total)
        variance = float((w * (r - mean) ** 2).sum() / total)
        if np.ptp(r) == 0 or variance == 0:
            continue
        correction = total / (total - 1) if std == "sample" and total > 1 else 1.0
        out[rows] = (r - mean) / np.sqrt(variance * correction)
    return out


def trajectory_weights(trajectories: Sequence[Hashable]) -> Floats:
    """Return weights, shape (rows,), under which every trajectory counts once, however many rows it has."""
    out = np.zeros(len(trajectories))
    for rows in group_rows(trajectories):
        out[rows] = 1 / len(rows)
    return out


def balance_groups(advantages: Floats, groups: Sequence[Hashable], size: int, how: Balance, rng: random.Random) -> list[float]:
    """Return row weights that make every group count as `size` samples.

    weight: all rows, each size / M times, at most CAP times. uniform: exactly `size`, a random subset of more or random copies
    of fewer; a row that was sampled twice weighs 2. abs_adv: the same with probabilities proportional to the absolute
    advantage.
    """
    out = np.ones(len(advantages))
    for rows in group_rows(groups):
        if how == "weight":
            out[rows] = min(CAP, size / len(rows))
        elif how != "none":
            chances = np.abs(advantages[rows]) if how == "abs_adv" else np.ones(len(rows))
            out[rows] = _draw_counts(chances if chances.any() else np.ones(len(rows)), size, rng)
    return [float(weight) for weight in out]


def _draw_counts(chances: Floats, size: int, rng: random.Random) -> Floats:
    """Return how often each row is sampled: all once and some again where they are too few, some once where they are too
    many."""
    count = len(chances)
    if count <= size:
        copies = rng.choices(range(count), weights=chances.tolist(), k=size - count)
        return np.bincount(np.array([*range(count), *copies]), minlength=count).astype(float)
    # The largest of u^(1/chance) are a weighted draw without replacement; what has no chance comes last.
    keys = [rng.random() ** (1 / chance) if chance else -rng.random() for chance in chances]
    kept = np.argsort(keys)[-size:]
    return np.isin(np.arange(count), kept).astype(float)
