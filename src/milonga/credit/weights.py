"""Row weights: class balance within each problem, and terms of a loss that do not dilute each other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from milonga.credit.baselines import group_rows
from milonga.credit.labels import compute_class_weights
from milonga.types import Floats


def compute_group_class_weights(labels: Sequence[float] | Floats, groups: Sequence[Hashable]) -> list[float]:
    """Return class weights under which right and wrong rows count alike within every group, 1 on average there.

    A group with one class alone weighs 0: it would teach which problems are hard, not which solutions are right. Unknown labels
    (NaN) weigh 0 too.
    """
    values = np.asarray(labels, dtype=float)
    out = np.zeros(len(values))
    for rows in group_rows(groups):
        known = values[rows][~np.isnan(values[rows])]
        if len({bool(label >= 0.5) for label in known}) == 2:
            out[rows] = compute_class_weights(values[rows])
    return [float(weight) for weight in out]


def term_weights(
    terms: Sequence[str],
    factors: Mapping[str, float],
    weights: Sequence[float] | None = None,
    sizes: Sequence[float] | None = None,
) -> list[float]:
    """Return row weights of a loss with several terms: each term is the mean over its own rows, times its factor.

    The learner divides by the sizes of all rows together; a row's weight undoes that and divides by those of its own term, so
    that rows of another term change nothing. `weights` are the weights within a term: rows of weight 0 are not counted. `sizes`
    are what the objective sums over: tokens of a row, or 1 for a row (or a pair) that counts once.
    """
    size = np.ones(len(terms)) if sizes is None else np.asarray(sizes, dtype=float)
    own = np.ones(len(terms)) if weights is None else np.asarray(weights, dtype=float)
    out = np.zeros(len(terms))
    for rows in group_rows(terms):
        count = float((own[rows] * size[rows]).sum())
        if count:
            out[rows] = factors[terms[rows[0]]] * own[rows] * float(size.sum()) / count
    return [float(weight) for weight in out]


def mark_best_rows(scores: Sequence[float] | Floats, groups: Sequence[Hashable]) -> NDArray[np.bool_]:
    """Return a mask, True at the highest score of each group, the first among equals; an unknown score (NaN) is never the
    highest."""
    values = np.asarray(scores, dtype=float)
    out = np.zeros(len(values), dtype=bool)
    for rows in group_rows(groups):
        known = [row for row in rows if not np.isnan(values[row])]
        if known:
            out[max(known, key=lambda row: values[row])] = True
    return out
