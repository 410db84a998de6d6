"""Credit for choosing problems: what can be learned from is neither always solved nor never."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def learnability(rate: float) -> float:
    """4 p (1 - p): 0 where all or none are right, 1 where half of them are. NaN stays NaN."""
    return 4 * rate * (1 - rate)


def spread_of(choices: Sequence[int], options: int) -> float | None:
    """The entropy of some choices as a share of that of an even one: 0 for one alone, 1 for all alike; None for no choice."""
    if not choices or options < 2:
        return None
    shares = [count / len(choices) for count in Counter(choices).values()]
    return -sum(share * math.log(share) for share in shares) / math.log(options)


def by_hand(levels: Sequence[int], progress: float) -> int:
    """The level of an easy-to-hard schedule: each for an equal share of the run."""
    return levels[min(len(levels) - 1, int(progress * len(levels)))]


def edge(rate: float, extreme: float, plain: bool = False) -> float:
    """Absolute Zero's reward of who posed a task that was solved at this rate: 1 - rate, and `extreme` where all or none solved
    it. Plain, also there 1 - rate: most for what nobody can. NaN stays NaN."""
    return extreme if rate in (0.0, 1.0) and not plain else 1.0 - rate


def graded_reward(correct: float, readable: bool, wrong: float, invalid: float) -> float:
    """Of who solved it: 1 if right, `wrong` for a wrong answer, `invalid` for none; NaN where nobody can tell."""
    if not readable:
        return invalid
    return correct if math.isnan(correct) or correct else wrong
