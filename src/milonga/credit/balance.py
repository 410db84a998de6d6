"""Class weights: rows of rare outcomes count more, so that the verifier of a weak generator does not call everything wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from milonga.types import Floats


@dataclass
class ClassBalance:
    """Running counts of checks of right and of wrong solutions, and the class weights that follow. Part of the run's state.

    Counts follow an exponential moving average that starts from the first batch. Weights: c = 1 / sqrt(count), or 1 / count
    with `inverse`, under which both classes count alike; scaled to a batch mean of 1. Counts are floored at 1.
    """

    decay: float = 0.8
    right: float | None = None
    wrong: float | None = None
    inverse: bool = False

    def update(self, correct: Floats) -> None:
        """Update the moving averages with one batch. correct: 1 right, 0 wrong, NaN unknown (ignored); shape (rows,). A batch
        of unknown rows alone changes nothing."""
        known = correct[~np.isnan(correct)]
        if not len(known):  # a batch that says nothing of the classes is no batch without them
            return
        right, wrong = float((known == 1).sum()), float((known == 0).sum())
        if self.right is None or self.wrong is None:
            self.right, self.wrong = right, wrong
        else:
            self.right = self.decay * self.right + (1 - self.decay) * right
            self.wrong = self.decay * self.wrong + (1 - self.decay) * wrong

    def weights(self, correct: Floats) -> Floats:
        """Return one weight per row, with mean 1 over the rows whose class is known; unknown rows weigh 0. Shapes: (rows,)."""
        if np.isnan(correct).all():
            return np.zeros(len(correct))
        if self.right is None or self.wrong is None:
            raise ValueError("class balance has seen no batch yet")
        right, wrong = max(1.0, self.right), max(1.0, self.wrong)
        share = {1.0: 1 / right, 0.0: 1 / wrong} if self.inverse else {1.0: 1 / math.sqrt(right), 0.0: 1 / math.sqrt(wrong)}
        raw = np.array([share.get(float(c), 0.0) for c in correct])
        known = int((raw > 0).sum())
        return raw * known / raw.sum() if known else raw
