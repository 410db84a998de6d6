"""Metrics of a slice judge: F1 against the exact truth, acceptance by origin, and a style-only baseline (origin AUC)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from milonga.credit import is_reference
from milonga.evals.metrics import detection_f1, mean, order_accuracy
from milonga.types import Rollout, Rollouts

Metrics = dict[str, float | None]
ANSWERED = (("yes_on_right_answers", 1.0), ("yes_on_wrong_answers", 0.0))
"""Names of the rates by answer, each with the correctness it is of."""


def slice_metrics(verdicts: Rollouts) -> Metrics:
    """Compute the metrics of slice verdicts; `slice_f1` is detection F1 on generated slices whose steps have a known truth."""
    generated = verdicts.select(lambda v: not is_reference(v.target))
    known = [(v.verification.final, sound) for v in generated if (sound := is_sound(v.target)) is not None]
    predicted = [None if final is None else -int(final) for final, _ in known]
    slices, references = generated.targets, verdicts.select(lambda v: is_reference(v.target)).targets
    return {
        "slice_f1": detection_f1(predicted, [-int(sound) for _, sound in known]),
        "slice_steps": mean([float(len(piece.solution.steps)) for piece in slices]),
        "slice_length": mean([float(len(piece.text)) for piece in slices]),
        "origin_auc": origin_auc([piece.text for piece in references], [piece.text for piece in slices]),
    } | yes_rates(verdicts)


def is_sound(piece: Rollout) -> bool | None:
    """Whether every step of a slice is right; None where that is not known."""
    return None if piece.grade is None or piece.grade.steps is None else all(piece.grade.steps)


def yes_rates(verdicts: Rollouts) -> Metrics:
    """The share of yes verdicts by origin and, on generated slices, by truth. Near 0 or 1 everywhere: the judge collapsed."""
    kinds: dict[str, list[bool]] = {"reference": [], "right": [], "wrong": []}
    for verdict in verdicts:
        sound = True if is_reference(verdict.target) else is_sound(verdict.target)
        if sound is not None:
            kind = "reference" if is_reference(verdict.target) else "right" if sound else "wrong"
            kinds[kind].append(verdict.verification.final is True)
    return {f"yes_on_{kind}": mean(values) for kind, values in kinds.items()}


def answer_rates(verdicts: Rollouts) -> dict[str, float]:
    """The share of yes verdicts on generated slices by the answer of their solution: what is left where nobody knows the steps.
    Empty where somebody does."""
    unknown = [v for v in verdicts if not is_reference(v.target) and is_sound(v.target) is None]
    kinds = {name: [v for v in unknown if v.target.correct == is_right] for name, is_right in ANSWERED}
    return {name: sum(v.verification.final is True for v in some) / len(some) for name, some in kinds.items() if some}


def origin_auc(reference: Sequence[str], generated: Sequence[str]) -> float | None:
    """The AUROC of telling the two sources apart by a bag of characters alone: 0.5 is chance, 1 means style gives it away.

    Naive Bayes with add-one smoothing; each half of the texts is scored by the other half's counts. None with under four of
    either kind.
    """
    if min(len(reference), len(generated)) < 4:
        return None
    areas = []
    for half in (0, 1):
        odds = _character_log_odds(reference[1 - half :: 2], generated[1 - half :: 2])
        texts = [*reference[half::2], *generated[half::2]]
        labels = [1.0] * len(reference[half::2]) + [0.0] * len(generated[half::2])
        scores = [sum(odds.get(c, 0.0) for c in text) / max(1, len(text)) for text in texts]
        areas.append(order_accuracy(scores, labels) or 0.0)
    return sum(areas) / 2


def _character_log_odds(first: Iterable[str], second: Iterable[str]) -> dict[str, float]:
    """Compute each character's log-odds of belonging to the first source, with add-one smoothing."""
    one, two = (Counter(c for text in texts for c in text) for texts in (first, second))
    letters = one.keys() | two.keys()
    ones, twos = one.total() + len(letters), two.total() + len(letters)
    return {c: math.log((one[c] + 1) / ones) - math.log((two[c] + 1) / twos) for c in letters}
