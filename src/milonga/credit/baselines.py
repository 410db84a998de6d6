"""Advantages from rewards: group baselines and normalisation (GRPO, RLOO). Pure functions of numbers.

Invariants: a missing reward (NaN) is left out of its group's baseline and gets advantage 0; the advantages of a group sum to
zero; the order of the rows does not matter; a group of one has no baseline and is an error, never a raw reward.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from milonga.types import Floats

EPSILON = 1e-6
Normaliser = Literal["zscore", "zscore_population", "centre", "leave_one_out"]


def group_rows(groups: Sequence[Hashable]) -> list[list[int]]:
    """Return the row numbers of each group; groups are in order of first appearance."""
    found: dict[Hashable, list[int]] = {}
    for row, key in enumerate(groups):
        found.setdefault(key, []).append(row)
    return list(found.values())


def normalise(rewards: Sequence[float] | Floats, groups: Sequence[Hashable], how: Normaliser = "zscore") -> Floats:
    """Return group-normalised advantages (GRPO) of scalar rewards. rewards: shape [rollouts]; the result has the same shape.

    zscore: (r - mean) / (std + 1e-6), std unbiased; zscore_population: std of the group itself. centre: r - mean.
    leave_one_out: r - mean of the others.
    """
    values = np.asarray(rewards, dtype=float)
    if len(values) != len(groups):
        raise ValueError(f"{len(values)} rewards for {len(groups)} rows")
    out = np.zeros(len(values))
    for rows in group_rows(groups):
        known = [r for r in rows if not np.isnan(values[r])]
        if len(rows) == 1:
            raise ValueError(f"group '{groups[rows[0]]}' has one member and so no baseline; sample at least two")
        if len(known) < 2:
            continue
        out[known] = _normalise_group(values[known], how)
    return out


def _normalise_group(values: Floats, how: Normaliser) -> Floats:
    """Normalise the known rewards of one group; all equal rewards give advantage 0."""
    if np.ptp(values) == 0:
        # Exactly zero: the mean of equal floats may differ from them in the last bit, and 1e-6 does not hide that.
        return np.zeros(len(values))
    centred: Floats = values - values.mean()
    if how in ("zscore", "zscore_population"):
        centred /= values.std(ddof=1 if how == "zscore" else 0) + EPSILON
    elif how == "leave_one_out":
        centred *= len(values) / (len(values) - 1)
    return centred


def has_both_outcomes(outcomes: Floats, groups: Sequence[Hashable]) -> np.ndarray:
    """Return a mask over rows, True where outcomes differ within the row's group (DAPO's dynamic sampling filter).

    The outcome reward decides, before any shaping by length. shape: as `outcomes`.
    """
    keep = np.zeros(len(outcomes), dtype=bool)
    for rows in group_rows(groups):
        different = {float(outcomes[r]) for r in rows if not np.isnan(outcomes[r])}
        keep[rows] = len(different) > 1
    return keep
