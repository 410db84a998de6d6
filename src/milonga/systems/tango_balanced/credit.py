"""Labels of steps that follow from answers and corruptions, and how the verdicts on them are credited. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from milonga.credit.baselines import Normaliser, group_rows, normalise
from milonga.types import Floats, PerToken, Rollout

NAN = float("nan")


@dataclass(frozen=True)
class StepLabels:
    """What is known of the steps of one solution: for each a label (1 right, 0 wrong, NaN unknown) and how much it counts."""

    labels: tuple[float, ...]
    weights: tuple[float, ...]
    flawed: bool = False
    """Whether at least one step is wrong, and it is unknown which."""

    @classmethod
    def from_answer(cls, correct: float, count: int, soundness: float) -> StepLabels:
        """Label `count` steps by the answer alone (multiple-instance labels): if it is right all of them are, which counts as
        much as right answers are sound; if it is wrong at least one is wrong."""
        if correct == 1.0:
            return cls((1.0,) * count, (soundness,) * count)
        return cls((NAN,) * count, (0.0,) * count, flawed=correct == 0.0)

    @classmethod
    def from_corruption(cls, labels: Sequence[float], soundness: float) -> StepLabels:
        """Take the labels of a corrupted solution: a corruption is wrong for sure, what was kept is as right as its answer."""
        return cls(tuple(labels), tuple(soundness if label == 1.0 else 1.0 for label in labels))


def credit_step_verdicts(
    said: Sequence[Sequence[bool] | None], known: Sequence[StepLabels], groups: Sequence[Hashable], how: Normaliser
) -> list[Floats]:
    """Return the advantage of each step verdict of each check; `groups` are the solutions that the checks are about.

    A verdict is compared with those of the other checks on the same step: it is worth 1 if it agrees with the label. In a
    solution with an unknown wrong step, a check is worth 1 if it calls any step wrong, and its verdicts share the advantage.
    A check without readable verdicts, and a step without a verdict or a label, has 0.
    """
    out = [np.zeros(len(one.labels)) for one in known]
    for rows in group_rows(groups):
        one = known[rows[0]]
        if one.flawed:
            found = [NAN if said[row] is None else float(not all(said[row] or ())) for row in rows]
            for row, value in zip(rows, normalise(found, ["check"] * len(rows), how), strict=True):
                out[row][: len(said[row] or ())] = value
            continue
        for k, (label, weight) in enumerate(zip(one.labels, one.weights, strict=True)):
            agrees = [_agrees(said[row], k, label) for row in rows]
            for row, value in zip(rows, weight * normalise(agrees, ["step"] * len(rows), how), strict=True):
                out[row][k] = value
    return out


def _agrees(said: Sequence[bool] | None, k: int, label: float) -> float:
    if said is None or k >= len(said) or np.isnan(label):
        return NAN
    return float(said[k] == bool(label))


def place_on_verdicts(values: Floats, check: Rollout) -> PerToken:
    """Place the advantage of each step verdict on the tokens of its check; zero elsewhere. Array aligned with `check.ids`."""
    out = np.zeros(len(check.ids))
    for value, (start, end) in zip(values, check.steps, strict=False):
        out[start:end] = value
    return out * check.mask


@dataclass
class Soundness:
    """Estimate of how many right answers are sound, from how often wrong answers agree. Part of the run's state.

    Two wrong answers agree with probability g. If every answer is as likely an end of an unsound solution as any other, p, then
    g = p / (1 - p), since the right one is not among them; of U unsound solutions p U are right and (1 - p) U wrong, so that W
    wrong answers stand for W g lucky ones. The estimate is not too high if the right answer is no likelier a lucky end than any
    wrong one; wrong answers that agree for a reason (a common misreading) make it too low. Where luck prefers the right answer
    it can be far too high: in chain arithmetic, where a wrong step may be healed by the next. Counts decay from turn to turn.
    """

    decay: float = 0.8
    agree: float = 0.0
    pairs: float = 0.0
    right: float = 0.0
    wrong: float = 0.0

    def update(self, answers: Sequence[int | None], correct: Floats, groups: Sequence[Hashable]) -> None:
        """Count one turn: the class of each answer (None: no answer), whether it is right, and its problem."""
        agree = pairs = 0.0
        for rows in group_rows(groups):
            wrong = [answers[row] for row in rows if correct[row] == 0.0 and answers[row] is not None]
            pairs += len(wrong) * (len(wrong) - 1)
            agree += sum(wrong.count(answer) - 1 for answer in wrong)
        new = {"agree": agree, "pairs": pairs, "right": float((correct == 1).sum())}
        new["wrong"] = float(sum(c == 0 and a is not None for a, c in zip(answers, correct, strict=True)))
        for name, value in new.items():
            setattr(self, name, self.decay * getattr(self, name) + value)

    @property
    def share(self) -> float:
        """The share of right answers that are sound, from 0 to 1; 1 where nothing says otherwise."""
        if not self.pairs or not self.right:
            return 1.0
        return max(0.0, 1 - self.wrong * self.agree / self.pairs / self.right)


@dataclass
class Skill:
    """Moving averages of a verifier's accuracy on right and on wrong solutions. Part of the run's state."""

    decay: float = 0.8
    right: float | None = None
    wrong: float | None = None

    def update(self, said: Sequence[bool | None], correct: Floats) -> None:
        """Update with the final verdicts of one turn (None: unreadable, and so not right); what has no grade is left out."""
        for name, value in (("right", 1.0), ("wrong", 0.0)):
            hits = [float(s is bool(value)) for s, c in zip(said, correct, strict=True) if c == value]
            if hits:
                now, before = float(np.mean(hits)), getattr(self, name)
                setattr(self, name, now if before is None else self.decay * before + (1 - self.decay) * now)

    @property
    def factor(self) -> float:
        """2 * balanced accuracy - 1, never below 0: what a verdict says beyond chance. 0 while a class was never seen."""
        if self.right is None or self.wrong is None:
            return 0.0
        return max(0.0, self.right + self.wrong - 1)


def soften_signs(signs: Sequence[float] | None, soft: Sequence[float] | None) -> list[float] | None:
    """Replace verdicts of +1 and -1 by 2p - 1, with p the probability of "right"; NaN where there was no verdict. Verdicts
    without probabilities stay as they are."""
    if signs is None or soft is None:
        return None if signs is None else list(signs)
    known: list[Any] = [*soft, *[NAN] * (len(signs) - len(soft))]
    return [NAN if np.isnan(sign) else 2 * p - 1 for sign, p in zip(signs, known, strict=True)]
