"""Targets of a value head from labels of steps and solutions.

Invariant: every array is aligned with `rollout.ids`; NaN means that the head gets no target there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from milonga.types import Floats, PerToken, Rollouts


def mask_after_error(labels: Sequence[float]) -> list[float]:
    """Keep the labels up to and including the first wrong one; what comes after it was never labelled, and becomes NaN."""
    first = next((k for k, label in enumerate(labels) if label < 0.5), len(labels))
    return [float(label) if k <= first else float("nan") for k, label in enumerate(labels)]


def step_targets(labels: Sequence[Sequence[float] | None], rollouts: Rollouts) -> list[PerToken]:
    """Return targets with one label at the last token of each step; all NaN for a rollout without labels, or with another
    number of steps."""
    out = []
    for label, rollout in zip(labels, rollouts, strict=True):
        row = np.full(len(rollout.ids), np.nan)
        if label is not None and len(label) == len(rollout.steps):
            for value, (_, end) in zip(label, rollout.steps, strict=True):
                row[end - 1] = value
        out.append(row)
    return out


def outcome_targets(labels: Sequence[float] | Floats, rollouts: Rollouts) -> list[PerToken]:
    """Return targets with one label at the last token of each rollout; NaN stays NaN."""
    out = []
    for label, rollout in zip(labels, rollouts, strict=True):
        row = np.full(len(rollout.ids), np.nan)
        row[-1] = label
        out.append(row)
    return out


def compute_class_weights(labels: Sequence[float] | Floats) -> list[float]:
    """Return class weights under which right (>= 0.5) and wrong rows count alike, 1 on average; 1 where there is only one
    class.

    Unknown labels (NaN) weigh 0.
    """
    values = np.asarray(labels, dtype=float)
    known = ~np.isnan(values)
    right = known & (values >= 0.5)
    count, rights = int(known.sum()), int(right.sum())
    if not rights or rights == count:
        return [float(k) for k in known]
    share = np.where(right, count / (2 * rights), count / (2 * (count - rights)))
    return [float(w) for w in np.where(known, share, 0.0)]


def label_agreement(pairs: Sequence[tuple[Sequence[float], Sequence[bool] | None]]) -> float | None:
    """Return the share of step labels that agree with the truth of their prefix: right until the first error, wrong from it on.

    None where no truth is known. For measuring labels, never for making them.
    """
    hits = []
    for labels, truth in pairs:
        if truth is None or len(labels) != len(truth):
            continue
        reached = np.minimum.accumulate(np.asarray(truth, dtype=bool)) if len(truth) else np.zeros(0, dtype=bool)
        hits += [(label >= 0.5) == right for label, right in zip(labels, reached, strict=True) if not np.isnan(label)]
    return float(np.mean(hits)) if hits else None
