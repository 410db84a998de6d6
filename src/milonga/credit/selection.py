"""Selection of solutions: which ones to label, which ones to learn from, and which ones form preference pairs."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from milonga.credit.baselines import group_rows
from milonga.types import Floats

PairRule = Literal["best_worst", "tier"]
"""best_worst: the first of the highest score against the first of the lowest. tier: among equals, the shortest against the
longest, so that length is never what wins."""


def select_convincing_wrong(
    scores: Sequence[float], correct: Floats, groups: Sequence[Hashable], count: int, share: float, rng: random.Random
) -> list[int]:
    """Select `count` rows of each group: a share of them the wrong ones that score highest, the rest sampled from the other
    rows.

    Convincing wrong solutions alone would teach that everything is wrong; rows sampled without looking keep the balance. Where
    a group has fewer wrong rows than its share, more are sampled; a row whose outcome is unknown (NaN) never counts as wrong.
    """
    chosen: list[int] = []
    for rows in group_rows(groups):
        wrong = sorted((r for r in rows if correct[r] == 0), key=lambda r: -scores[r])
        taken = wrong[: round(share * min(count, len(rows)))]
        rest = [r for r in rows if r not in taken]
        chosen += taken + rng.sample(rest, min(len(rest), count - len(taken)))
    return sorted(chosen)


def select_best_solutions(
    solutions: Sequence[tuple[str, bool, Sequence[float]]], top: int, least: float, rng: random.Random | None = None
) -> list[str]:
    """Select the right solutions with the highest mean q among those of one problem (text, whether right, q of each step).

    The lowest q decides among equals; where `rng` is given, it alone decides. Returns none if less than the share `least` of
    the solutions is right: the answer key is then doubtful.
    """
    right = [((sum(qs) / len(qs), min(qs)), text) for text, correct, qs in solutions if correct]
    if len(right) < least * len(solutions):
        return []
    ordered = sorted(right, key=lambda one: one[0], reverse=True) if rng is None else rng.sample(right, len(right))
    return [text for _, text in ordered[:top]]


def filter_right_rows(right: Sequence[bool], groups: Sequence[Hashable], least: float = 0.0) -> list[bool]:
    """Return a mask of the rows to keep (rejection sampling): those that are right, in groups with at least this share of right
    rows."""
    kept = [False] * len(right)
    for rows in group_rows(groups):
        if sum(right[row] for row in rows) >= least * len(rows):
            for row in rows:
                kept[row] = right[row]
    return kept


def downsample_to_balance(kept: Sequence[bool], classes: Sequence[Hashable], rng: random.Random) -> list[bool]:
    """Downsample the kept rows at random so that every class that occurs among all rows has equally many."""
    found = [[row for row in rows if kept[row]] for rows in group_rows(classes)]
    least = min((len(rows) for rows in found), default=0)
    chosen = {row for rows in found for row in rng.sample(rows, least)}
    return [row in chosen for row in range(len(kept))]


def sample_half_pairs(
    scores: Sequence[float] | Floats, groups: Sequence[Hashable], count: int, gap: float, rng: random.Random
) -> list[tuple[int, int]]:
    """Sample `count` preference pairs of each group: a row of its better half and one of its worse half.

    Sampling is a brake: the best against the worst would follow every error of the scores. Pairs that are closer than `gap`, or
    equal, or repeated, are dropped; unknown scores (NaN) take no part.
    """
    values, out = np.asarray(scores, dtype=float), []
    for rows in group_rows(groups):
        known = sorted((row for row in rows if not np.isnan(values[row])), key=lambda row: -values[row])
        upper, lower = known[: len(known) // 2], known[(len(known) + 1) // 2 :]
        drawn = [(rng.choice(upper), rng.choice(lower)) for _ in range(count)] if upper and lower else []
        apart = max(gap, np.finfo(float).tiny)
        out += [(best, worst) for best, worst in dict.fromkeys(drawn) if values[best] - values[worst] >= apart]
    return out


def select_best_worst(
    scores: Sequence[float] | Floats, sizes: Sequence[float], groups: Sequence[Hashable], rule: PairRule, margin: float
) -> list[tuple[int, int]]:
    """Select the best and the worst row of each group as a pair; none where their scores are equal, or closer than the margin.

    Unknown scores (NaN) take no part.
    """
    values, sign = np.asarray(scores, dtype=float), 1 if rule == "tier" else 0
    out = []
    for rows in group_rows(groups):
        known = [row for row in rows if not np.isnan(values[row])]
        if not known:
            continue
        best = min(known, key=lambda row: (-values[row], sign * sizes[row]))
        worst = min(known, key=lambda row: (values[row], -sign * sizes[row]))
        if values[best] - values[worst] >= max(margin, np.finfo(float).tiny):
            out.append((best, worst))
    return out
