"""Best-of-N and vote accuracy at every N, estimated from one larger set of samples.

Invariant: every figure is the mean over all subsets of N of a problem's solutions, or over a fixed random sample of these
where there are too many, and so has no bias: solutions are used again for every N, never drawn again. Ties count with
their expected value under random tie-breaking.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from milonga.types import Floats

MOST_SUBSETS = 20_000
"""All subsets up to here, so many of them beyond it: C(16, 8) = 12,870 are all; of one problem the standard error is then
below 0.004."""
EQUAL = 1e-9
"""Sums of weights that lie nearer than this are the same: the order of summation must not decide a vote."""


def list_subset_sizes(most: int) -> list[int]:
    """List the subset sizes 1, 2, 4, ... and `most` itself."""
    return [*itertools.takewhile(lambda n: n < most, (2**i for i in itertools.count())), most]


def enumerate_subsets(total: int, n: int) -> NDArray[np.bool_]:
    """Return a boolean mask [subsets, total], each row with `n` true: all subsets, or MOST_SUBSETS drawn by a fixed seed."""
    if not 1 <= n <= total:
        raise ValueError(f"cannot choose {n} of {total}")
    if math.comb(total, n) <= MOST_SUBSETS:
        chosen = np.array(list(itertools.combinations(range(total), n)))
    else:
        chosen = np.random.default_rng(0).random((MOST_SUBSETS, total)).argsort(axis=1)[:, :n]
    rows = np.zeros((len(chosen), total), dtype=bool)
    rows[np.arange(len(chosen))[:, None], chosen] = True
    return rows


def best_of_n_accuracy(ranks: Sequence[float], right: Sequence[float], n: int) -> float:
    """Probability that the highest-ranked of `n` solutions is right. In closed form: of C(t, n) subsets, those without the
    `above` solutions that rank higher and with one of the `tied` that share a rank have their best among these."""
    total, out = len(ranks), 0.0
    for rank in set(ranks):
        tied = [r for mine, r in zip(ranks, right, strict=True) if mine == rank]
        rest = total - sum(other > rank for other in ranks)
        first = math.comb(rest, n) - math.comb(rest - len(tied), n)
        out += first / math.comb(total, n) * (sum(tied) / len(tied))
    return out


def vote_accuracy(answers: Sequence[str | None], right: Sequence[float], weights: Sequence[float], n: int) -> float:
    """Probability that the answer with the most total weight among `n` solutions is right.

    Answers are compared by their text. A solution without an answer has no vote; without any answer the result is 0.
    """
    names = list(dict.fromkeys(answer for answer in answers if answer is not None))
    if not names:
        return 0.0
    gives: Floats = np.array([[float(answer == name) for name in names] for answer in answers])
    chosen = enumerate_subsets(len(answers), n).astype(float)
    score = np.where(chosen @ gives > 0, chosen @ (gives * np.asarray(weights, dtype=float)[:, None]), -np.inf)
    best = score.max(axis=1, keepdims=True)
    winners = np.isfinite(score) & (score >= best - EQUAL)
    truth = (gives * np.asarray(right, dtype=float)[:, None]).sum(0) / gives.sum(0)
    return float(((winners * truth).sum(1) / np.maximum(1, winners.sum(1))).mean())
