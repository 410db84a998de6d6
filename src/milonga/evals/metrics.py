"""Metrics as pure functions. docs/metrics.md has the formulas in words; nothing here knows a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from milonga.types import Floats

Interval = tuple[float | None, float | None]
Steps = tuple[Sequence[bool], Sequence[bool]]
"""What was said of the steps of a solution, perhaps of the first ones alone, and what is true of them."""
ROUNDS = 1000
"""Draws of a bootstrap."""


def mean(values: Sequence[float] | Sequence[bool | None] | Floats) -> float | None:
    """The mean of the known values; None where there are none."""
    known = [float(v) for v in values if v is not None and not math.isnan(float(v))]
    return float(np.mean(known)) if known else None


def pass_at_k(right: int, total: int, k: int) -> float:
    """Unbiased chance that at least one of k outputs, drawn from `total` of which `right` are right, is right."""
    if k > total:
        raise ValueError(f"pass@{k} needs at least {k} outputs, not {total}")
    return 1.0 - math.comb(total - right, k) / math.comb(total, k)


def order_accuracy(scores: Sequence[float], right: Sequence[float]) -> float | None:
    """Share of (right, wrong) pairs in which the right one scores higher, ties counted half: the area under the ROC curve.

    None where there is no such pair.
    """
    above = np.array([s for s, r in zip(scores, right, strict=True) if r == 1.0])
    below = np.sort([s for s, r in zip(scores, right, strict=True) if r == 0.0])
    if not len(above) or not len(below):
        return None
    known = above[~np.isnan(above)]  # one that is not known wins nothing; np.sort puts those of the other class last
    wins, reach = (np.searchsorted(below, known, side=side).sum() for side in ("left", "right"))
    pairs = len(above) * len(below)
    return float(wins / pairs + (reach - wins) / pairs / 2)


def order_accuracy_within(groups: Sequence[str], scores: Sequence[float], right: Sequence[float]) -> float | None:
    """The order accuracy within each group, averaged over the groups that have one. Scores that are not known are left out."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for group, score, label in zip(groups, scores, right, strict=True):
        if not math.isnan(score):
            rows.setdefault(group, []).append((score, label))
    found = [order_accuracy(*zip(*row, strict=True)) for row in rows.values()]
    return mean([value for value in found if value is not None])


def cut_at_first_error(truth: Sequence[bool]) -> Sequence[bool]:
    """The steps up to the first wrong one: what is true of those after it is a matter of definition, or not known."""
    return truth[: truth.index(False) + 1] if False in truth else truth


def step_rates(judged: Sequence[Steps]) -> dict[str, float | None]:
    """The false-alarm rate (right steps called wrong) and the detection rate (wrong steps called wrong) of step verdicts up to
    the first error, each with the number of steps that it is of. A step that no verdict reached counts in neither."""
    pairs = [pair for said, truth in judged for pair in zip(said, cut_at_first_error(truth), strict=False)]
    on_right, on_wrong = [not said for said, true in pairs if true], [not said for said, true in pairs if not true]
    return {
        "step_false_alarm_rate": mean(on_right),
        "step_detection_rate": mean(on_wrong),
        "judged_right_steps": float(len(on_right)),
        "judged_wrong_steps": float(len(on_wrong)),
    }


def find_first_wrong(verdicts: Sequence[bool] | None) -> int | None:
    """Index of the first step judged wrong, -1 if none is, None where the verification is unreadable."""
    if verdicts is None:
        return None
    return next((i for i, right in enumerate(verdicts) if not right), -1)


def process_f1(predictions: Sequence[int | None], labels: Sequence[int]) -> dict[str, float | None]:
    """The ProcessBench protocol: exact index of the first error, harmonic mean over the two classes; unreadable is wrong."""
    on_error = [p == label for p, label in zip(predictions, labels, strict=True) if label != -1]
    on_right = [p == label for p, label in zip(predictions, labels, strict=True) if label == -1]
    error, right = mean(on_error), mean(on_right)
    f1 = None if error is None or right is None else harmonic_mean(error, right)
    return {"f1": f1, "error_accuracy": error, "right_accuracy": right}


def harmonic_mean(a: float, b: float) -> float:
    """Harmonic mean, 0 where both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0


def trivial_f1(labels: Sequence[int], answers_right: Sequence[bool], counts: Sequence[int]) -> dict[str, float]:
    """Compute the F1 of trivial verifiers that know nothing of the steps, as baselines.

    no_knowledge: say -1 with the best probability, the modal index otherwise. answer_modal: a perfect judge of the answer that
    guesses the modal index. error_modal: a perfect judge of error or no error that does. answer_last: the last step instead.
    all_right, first_wrong: the same to everything. These have 0, like every constant guess: one of the classes has nothing.
    The best guess without a look is a mixture, no_knowledge.
    """
    errors = [label for label in labels if label != -1]
    if not errors or len(errors) == len(labels):
        return dict.fromkeys(("no_knowledge", "answer_modal", "error_modal", "answer_last", "all_right", "first_wrong"), 0.0)
    modal, hits = Counter(errors).most_common(1)[0]
    hit = hits / len(errors)

    def judged(flagged: Sequence[bool], guess: Sequence[int]) -> float:
        predictions = [g if f else -1 for f, g in zip(flagged, guess, strict=True)]
        return process_f1(predictions, labels)["f1"] or 0.0

    always_modal = [modal] * len(labels)
    wrong_answer = [not right for right in answers_right]
    # Saying -1 with probability q: acc_right = q, acc_error = (1 - q) hit. Their harmonic mean is largest at
    # q = sqrt(hit) / (1 + sqrt(hit)).
    return {
        "no_knowledge": 2 * hit / (1 + math.sqrt(hit)) ** 2,
        "answer_modal": judged(wrong_answer, always_modal),
        "error_modal": judged([label != -1 for label in labels], always_modal),
        "answer_last": judged(wrong_answer, [count - 1 for count in counts]),
        "all_right": judged([False] * len(labels), always_modal),
        "first_wrong": judged([True] * len(labels), [0] * len(labels)),
    }


def calibration_error(confidence: Sequence[float], outcome: Sequence[bool], bins: int = 10) -> float | None:
    """Expected calibration error: |mean confidence - share right| in bins of confidence, weighted by their size."""
    if not confidence:
        return None
    scores, truth = np.asarray(confidence, dtype=float), np.asarray(outcome, dtype=float)
    place = np.minimum((scores * bins).astype(int), bins - 1)
    gaps = [
        abs(scores[place == b].mean() - truth[place == b].mean()) * (place == b).mean()
        for b in range(bins)
        if np.any(place == b)
    ]
    return float(sum(gaps))


def majority_vote(predictions: Sequence[int | None]) -> int | None:
    """Majority of the readable predictions, the first seen on a tie; None where none is readable."""
    counts = Counter(p for p in predictions if p is not None)
    return counts.most_common(1)[0][0] if counts else None


def detection_f1(predictions: Sequence[int | None], labels: Sequence[int]) -> float | None:
    """F1 of error detection, at any step: harmonic mean of the recall of both classes."""
    found = [p is not None and p != -1 for p, label in zip(predictions, labels, strict=True) if label != -1]
    cleared = [p == -1 for p, label in zip(predictions, labels, strict=True) if label == -1]
    return harmonic_mean(float(np.mean(found)), float(np.mean(cleared))) if found and cleared else None


def bootstrap_interval(
    predictions: Sequence[int | None], labels: Sequence[int], items: Sequence[str], rounds: int = ROUNDS, seed: int = 0
) -> Interval:
    """95 % bootstrap interval of the F1. Items are resampled with all their predictions: more samples make no new items."""
    hits = [predicted == label for predicted, label in zip(predictions, labels, strict=True)]
    return class_interval(hits, [label != -1 for label in labels], items, harmonic_means, rounds, seed)


def class_interval(
    hits: Sequence[bool],
    first: Sequence[bool],
    items: Sequence[str],
    join: Callable[[Floats, Floats], Floats],
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Interval:
    """95 % percentile interval of `join`(share of hits in the first class, in the second), by a bootstrap over items, each
    drawn with all its hits. None where a class is empty; draws that leave one empty are left out."""
    if all(first) or not any(first):
        return None, None
    place = {name: i for i, name in enumerate(dict.fromkeys(items))}
    counts = np.zeros((len(place), 2, 2))
    for name, hit, own in zip(items, hits, first, strict=True):
        counts[place[name], int(not own)] += (hit, 1)
    drawn = np.random.default_rng(seed).integers(0, len(place), (rounds, len(place)))
    sums = np.array([np.bincount(row, minlength=len(place)) for row in drawn]) @ counts.reshape(len(place), 4)
    sums = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    return _percentile_interval(join(sums[:, 0] / sums[:, 1], sums[:, 2] / sums[:, 3]))


def order_interval(
    scores: Sequence[float], right: Sequence[bool], items: Sequence[str], rounds: int = ROUNDS, seed: int = 0
) -> Interval:
    """95 % percentile interval of the order accuracy, by a bootstrap over items, each drawn with all its scores. None where a
    class is empty; draws that leave one empty are left out."""
    if all(right) or not any(right):
        return None, None
    place = {name: i for i, name in enumerate(dict.fromkeys(items))}
    said, true, at = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool), np.array([place[name] for name in items])
    won = np.sign(said[true][:, None] - said[~true][None, :]) / 2 + 0.5
    member = at[:, None] == np.arange(len(place))  # [scores, items]
    wins = member[true].T.astype(float) @ won @ member[~true]  # [items, items]
    drawn = np.random.default_rng(seed).integers(0, len(place), (rounds, len(place)))
    times = np.array([np.bincount(row, minlength=len(place)) for row in drawn]).astype(float)
    pairs = (times @ member[true].sum(0)) * (times @ member[~true].sum(0))
    return _percentile_interval(((times @ wins * times).sum(1)[pairs > 0]) / pairs[pairs > 0])


def mean_interval(values: Sequence[float], rounds: int = ROUNDS, seed: int = 0) -> Interval:
    """95 % percentile interval of the mean over problems; None for fewer than two."""
    if len(values) < 2:
        return None, None
    known = np.asarray(values, dtype=float)
    return _percentile_interval(known[np.random.default_rng(seed).integers(0, len(known), (rounds, len(known)))].mean(1))


def _percentile_interval(drawn: Floats) -> Interval:
    if not len(drawn):
        return None, None
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def harmonic_means(a: Floats, b: Floats) -> Floats:
    """Harmonic means of many pairs: arrays of shape [n]."""
    return 2 * a * b / np.maximum(a + b, 1e-12)


def find_best_threshold(scores: Sequence[Sequence[float] | None], labels: Sequence[int]) -> float | None:
    """Find the threshold tau of the largest F1; the prediction is the first step below tau. The lowest of several.

    With m_k the lowest score up to step k, a first error at k is found by m_k < tau <= m_(k-1), and a solution without one is
    cleared by tau <= its lowest score: only the right ends of these ranges need to be tried. None where a class is empty.
    """
    ranges: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for steps, label in zip(scores, labels, strict=True):
        # What could not be scored is wrong whatever tau is.
        lowest = [math.inf, *np.minimum.accumulate(steps)] if steps else [-math.inf, -math.inf]
        at = label if steps else 0
        ranges[label != -1].append((-math.inf, lowest[-1]) if label == -1 else (lowest[at + 1], lowest[at]))
    if not ranges[True] or not ranges[False]:
        return None
    error, right = np.array(ranges[True]), np.array(ranges[False])
    tried = np.unique(np.concatenate([error[:, 1], right[:, 1]]))
    tried = tried[np.isfinite(tried)]
    if not len(tried):
        return None
    found = [((error[:, 0] < tau) & (tau <= error[:, 1])).mean() for tau in tried]
    cleared = [(tau <= right[:, 1]).mean() for tau in tried]
    return float(tried[int(np.argmax(harmonic_means(np.array(found), np.array(cleared))))])


def find_first_below(scores: Sequence[float] | None, threshold: float) -> int | None:
    """Index of the first step that scores below the threshold, -1 if none does, None where there are no scores."""
    return find_first_wrong(None if scores is None else [score >= threshold for score in scores])


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation; None where one side does not vary."""
    columns = np.array(pairs).T
    return float(np.corrcoef(columns)[0, 1]) if len(pairs) > 1 and columns.std(1).all() else None
