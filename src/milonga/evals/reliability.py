"""Calibration of a judge as pure functions of its confidences and the true outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milonga.evals.metrics import calibration_error
from milonga.types import Floats

BINS = 10


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram: mean confidence, and the share of right outcomes with its interval."""

    low: float
    high: float
    count: int
    confidence: float
    share: float
    share_low: float
    share_high: float


def bin_by_confidence(confidence: Sequence[float], outcome: Sequence[bool], bins: int = BINS) -> list[Bin]:
    """Compute the bins of a reliability diagram; empty bins are left out, and the last bin includes 1."""
    said, true = np.asarray(confidence, dtype=float), np.asarray(outcome, dtype=float)
    place = np.minimum((said * bins).astype(int), bins - 1)
    out = []
    for b in range(bins):
        here = place == b
        if here.any():
            low, high = wilson_interval(int(true[here].sum()), int(here.sum()))
            share = float(true[here].mean())
            out.append(Bin(b / bins, (b + 1) / bins, int(here.sum()), float(said[here].mean()), share, low, high))
    return out


def wilson_interval(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """95 % Wilson score interval of a share: it does not vanish if all of a few are right."""
    share, spread = right / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def brier_score(confidence: Sequence[float], outcome: Sequence[bool]) -> float | None:
    """Brier score: mean squared error of the confidence; 0 is perfect, a constant 0.5 scores 0.25."""
    if not confidence:
        return None
    return float(np.mean((np.asarray(confidence, dtype=float) - np.asarray(outcome, dtype=float)) ** 2))


def brier_limit(scores: Sequence[Sequence[float]], outcome: Sequence[bool]) -> float | None:
    """Estimate, without bias, the Brier score of the mean of infinitely many verifications from a few of each.

    The mean s of K draws around p has E (s - y)^2 = (p - y)^2 + var / K, and the sample variance over K is an unbiased
    estimate of the last term. None where nothing was judged twice.
    """
    known = [(np.asarray(group, dtype=float), right) for group, right in zip(scores, outcome, strict=True) if len(group) > 1]
    if not known:
        return None
    return float(np.mean([(group.mean() - right) ** 2 - group.var(ddof=1) / len(group) for group, right in known]))


def calibration_floor(confidence: Sequence[float], bins: int = BINS, rounds: int = 200, seed: int = 0) -> float | None:
    """The expected calibration error of a perfectly calibrated judge with these confidences. It is not 0: with few judgements
    in a bin the share of right ones is off by chance alone."""
    if not confidence:
        return None
    said: Floats = np.asarray(confidence, dtype=float)
    drawn = np.random.default_rng(seed).random((rounds, len(said))) < said
    return float(np.mean([calibration_error(confidence, row, bins) for row in drawn.tolist()]))
