"""The statistics of a comparison as pure functions of numbers: nothing here depends on a run, a recipe or a file.

Invariants: the unit of evidence is the seed, and everything about a difference is paired by seed; an interval is
Student's t over seeds, because a percentile bootstrap over five seeds covers 84 %, not 95 %; the bootstrap is over
problems only and says how much the choice of problems matters; where too few values are known the answer is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Points = Sequence[tuple[float, float]]
"""A curve: (position of the run, measured value), in the order of the run."""
Verdict = Literal["higher", "lower", "undecided"]

FEWEST_PAIRS = 3
"""A verdict needs at least this many paired seeds."""
LEVEL = 0.95
POWER = 0.8
ROUNDS = 4000
TINY = 1e-300
"""Stands for zero in the continued fraction, which divides by it."""


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below its mean
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return front * _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), with the terms of the incomplete beta function."""
    top, bottom = 1.0, 1.0 / _avoid_zero(1.0 - (a + b) * x / (a + 1))
    value = bottom
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            bottom = 1.0 / _avoid_zero(1.0 + term * bottom)
            top = _avoid_zero(1.0 + term / top)
            value *= top * bottom
        if abs(value - before) < 1e-15 * abs(value):
            break
    return value


def _avoid_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY


def student_cdf(t: float, df: int) -> float:
    """P(T <= t) of Student's t with `df` degrees of freedom."""
    tail = _student_tails(t, df) / 2
    return 1.0 - tail if t > 0 else tail


def _student_tails(t: float, df: int) -> float:
    """P(|T| >= |t|): the p-value of a two-sided test. Computed as a tail, so that a tiny one is not rounded to zero."""
    return 1.0 if t == 0 else incomplete_beta(df / 2, 0.5, df / (df + t * t))


@cache
def student_quantile(probability: float, df: int) -> float:
    """The t below which `probability` lies, by bisection: `student_quantile(0.975, 4)` is 2.776."""
    if not 0 < probability < 1 or df < 1:
        raise ValueError(f"no quantile {probability} of Student's t with {df} degrees of freedom")
    if probability < 0.5:
        return -student_quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < probability:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


def average(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for fewer than two values. Rounding noise among equal values counts as zero."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))
    return 0.0 if spread < 1e-12 * max(1.0, abs(centre)) else spread / math.sqrt(len(values))


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % t interval of the mean."""
    error = standard_error(values)
    return None if error is None else student_quantile((1 + LEVEL) / 2, len(values) - 1) * error


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % t interval of the mean; None for fewer than two values."""
    half, centre = half_width(values), average(values)
    return None if half is None or centre is None else (centre - half, centre + half)


def t_test(values: Sequence[float]) -> float | None:
    """The two-sided p-value of "the mean is zero". Equal values are certain: 0, or 1 where all of them are zero."""
    error, centre = standard_error(values), average(values)
    if error is None or centre is None:
        return None
    if error == 0.0:
        return 1.0 if abs(centre) < 1e-12 else 0.0
    return _student_tails(centre / error, len(values) - 1)


def smallest_effect(values: Sequence[float]) -> float | None:
    """The smallest true difference that so many seeds, spread like these, would have shown in 80 % of all experiments.

    A 95 % t interval of half-width h leaves out zero once the difference found is h; for a power of 80 % the true one
    must be h (1 + t_0.8 / t_0.975), which is (t_0.975 + t_0.8) standard errors. Holm's correction asks for more still.
    """
    half = half_width(values)
    if not half:
        return None  # equal values say nothing about the variance between seeds
    df = len(values) - 1
    return half * (1 + student_quantile(POWER, df) / student_quantile((1 + LEVEL) / 2, df))


def plan_seeds(effect: float, spread: float, level: float = LEVEL) -> int:
    """The smallest number of paired seeds whose interval of this level leaves out zero in 80 % of all experiments, if the true
    difference is `effect` and paired differences have the standard deviation `spread`. The inverse of `smallest_effect`."""
    if effect <= 0 or spread < 0:
        raise ValueError(f"no number of seeds can be planned for an effect of {effect} with a spread of {spread}")
    normal = NormalDist()
    # Quantiles of the normal distribution are below those of Student's t: so many seeds are too few, but hardly.
    least = ((normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(POWER)) * spread / effect) ** 2
    seeds = max(FEWEST_PAIRS, math.floor(least))
    while detectable_effect(seeds, spread, level) > effect:
        seeds += 1
    return seeds


def detectable_effect(seeds: int, spread: float, level: float = LEVEL) -> float:
    """The smallest true difference that so many seeds would show in 80 % of all experiments: see `plan_seeds`."""
    quantiles = student_quantile((1 + level) / 2, seeds - 1) + student_quantile(POWER, seeds - 1)
    return quantiles * spread / math.sqrt(seeds)


def narrow_interval(interval: tuple[float, float], pairs: int, level: float) -> tuple[float, float]:
    """The t interval of another level, from that of 95 % over so many values."""
    low, high = interval
    centre, half = (low + high) / 2, (high - low) / 2
    half *= student_quantile((1 + level) / 2, pairs - 1) / student_quantile((1 + LEVEL) / 2, pairs - 1)
    return centre - half, centre + half


def p_below(interval: tuple[float, float], pairs: int, bound: float) -> float:
    """The one-sided p-value of "the mean is at least `bound`", from the 95 % t interval over so many values."""
    low, high = interval
    error = (high - low) / 2 / student_quantile((1 + LEVEL) / 2, pairs - 1)
    gap = bound - (low + high) / 2
    if error <= 0:
        return 0.0 if gap > 0 else 1.0
    return student_cdf(-gap / error, pairs - 1)


def sign_test(wins: int, losses: int) -> float:
    """The exact two-sided p-value of "a win is as likely as a loss"; of paired yes-or-no outcomes it is McNemar's test."""
    count = wins + losses
    if count == 0:
        return 1.0
    tail = math.fsum(math.comb(count, k) / 2.0**count for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: all claims at 5 % hold together where these are below 5 %."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def decide_verdict(difference: float, adjusted: float | None, pairs: int, problems: tuple[float, float] | None) -> Verdict:
    """Decide whether a difference is significant at 5 % after Holm's correction, and its sign.

    Two further guards: accuracies are counted in whole problems, so that a few pairs can agree to the last digit by chance and
    leave a t test without any variance. At least three pairs are needed, and if problems can be resampled, their bootstrap
    interval must lie on the same side of zero.
    """
    if adjusted is None or find_guard(adjusted, pairs, problems) is not None:
        return "undecided"
    return "higher" if difference > 0 else "lower"


def find_guard(adjusted: float, pairs: int, problems: tuple[float, float] | None) -> str | None:
    """Find what keeps a difference from being decided, in words; None if nothing does."""
    if pairs < FEWEST_PAIRS:
        return f"fewer than {FEWEST_PAIRS} seeds decide nothing"
    if adjusted >= 1 - LEVEL:
        return f"p = {adjusted:.2g} after Holm's correction for all that was compared"
    if problems is not None and problems[0] <= 0 <= problems[1]:
        return f"[{problems[0]:+.3f}, {problems[1]:+.3f}] over problems"
    return None


def problem_interval(differences: Floats, rounds: int = ROUNDS, seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval over problems of a paired difference. differences: array [seeds, problems].

    A problem is resampled in every seed and in both arms at once: the interval shows how much the choice of problems
    matters for these very runs. Problems that some run could not grade (NaN) are left out of all of them.
    """
    known = differences[:, ~np.isnan(differences).any(axis=0)]
    count = known.shape[1]
    if known.shape[0] == 0 or count < 2:
        return None
    # Paired over seeds, so that their mean can be taken first. Chunks of rounds keep the table of draws small.
    per_problem = known.mean(axis=0)
    rng = np.random.default_rng(seed)
    means = [per_problem[rng.integers(0, count, (100, count))].mean(axis=1) for _ in range(max(1, rounds // 100))]
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _to_columns(points: Points) -> tuple[Floats, Floats]:
    """Convert a curve to sorted arrays x and y; of several values at one x (before and after a warm-up) the last is kept."""
    last = dict(points)
    places = sorted(last)
    return np.array(places, dtype=float), np.array([last[x] for x in places], dtype=float)


def mean_area(points: Points) -> float | None:
    """Area under a curve by the trapezoid rule, divided by its length: the mean height of the curve."""
    x, y = _to_columns(points)
    if len(x) < 2:
        return float(y[0]) if len(y) else None
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / (x[-1] - x[0]))


def align_curves(curves: Sequence[Points]) -> tuple[Floats, Floats]:
    """Interpolate the curves of several seeds to a common x axis. Return x [points] and y [seeds, points].

    The axis has every x at which any curve was measured. Interpolation is linear; after its end a curve stays constant, so
    that the last column holds the finals.
    """
    columns = [_to_columns(curve) for curve in curves if len(curve)]
    if not columns:
        return np.zeros(0), np.zeros((0, 0))
    places = np.unique(np.concatenate([x for x, _ in columns]))
    return places, np.array([np.interp(places, x, y) for x, y in columns])


def find_first_reach(curves: Sequence[Points], target: float) -> float | None:
    """The first measured x at which the mean over seeds reaches the target; None if never."""
    places, heights = align_curves(curves)
    if not len(places):
        return None
    reached = places[heights.mean(axis=0) >= target - 1e-9]
    return float(reached[0]) if len(reached) else None
