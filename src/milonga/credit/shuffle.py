"""The control that any real learning must beat: the same rewards, handed to the wrong rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from milonga.randomness import key64
from milonga.types import Floats, Lesson


def shuffled(lesson: Lesson, seed: int, turn: int) -> Lesson:
    """The lesson with its targets permuted among the rows. An advantage along tokens is stretched to its new row's length."""
    order = np.random.default_rng(key64("shuffled", seed, turn, lesson.policy)).permutation(len(lesson.traces))
    labels = [lesson.labels[i] for i in order] if lesson.labels is not None else None
    advantages = None
    if lesson.advantages is not None:
        advantages = []
        for row, other in enumerate(order):
            source = lesson.advantages[other][lesson.traces[other].mask]
            advantages.append(_stretched(source, lesson.traces[row].mask))
    return replace(lesson, advantages=advantages, labels=labels)


def _stretched(source: Floats, mask: np.ndarray) -> Floats:
    out = np.zeros(len(mask))
    count = int(mask.sum())
    if len(source) and count:
        out[mask] = source[np.arange(count) * len(source) // count]
    return out
